"""DelayQueue: a durable timed set."""

from __future__ import annotations

import builtins
import math
import os
import zlib
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

import redis as redis_py

from redis_queue.batches import CHUNK, MANY, by_size, check_limit, chunks, gap_ms, new_ids
from redis_queue.connection import Client
from redis_queue.delay_view import DelayView
from redis_queue.errors import ConfigurationError, EntryExistsError, InvalidDelayError, InvalidValueError
from redis_queue.keys import check_id
from redis_queue.leasing import Shard, id_bytes, id_text, pairs
from redis_queue.model import Entry, Lease, PutBack
from redis_queue.scripts import Scripts
from redis_queue.times import MAX_DELAY_MS, Seconds, duration_ms, from_ms, point_ms

OnConflict = Literal["replace", "keep", "error"]
Place = Literal["waiting", "dead", "quarantine"]

_MODES: Final = ("replace", "keep", "error")
MAX_DESTINATION: Final = 512


@dataclass(frozen=True, slots=True)
class Push:
    """One entry for :meth:`DelayQueue.push_many`; the same fields as :meth:`DelayQueue.push`."""

    payload: Any
    delay: Seconds | None = None
    due_at: datetime | None = None
    id: str | None = None
    headers: Mapping[str, Any] | None = None
    destination: str | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a claimed entry became: *element* for each of *lists*. Keys in *expiring* end after *ttl_ms* without use."""

    entry: Entry
    element: bytes
    lists: Sequence[str]
    ttl_ms: int = 0
    expiring: Sequence[str] = ()

    def fields(self) -> builtins.list[Any]:
        """Return what the script takes."""
        id_, token = pairs([self.entry])
        return [id_, token, self.element, self.ttl_ms, len(self.lists), *self.lists, len(self.expiring), *self.expiring]


@dataclass(frozen=True, slots=True)
class Foreign:
    """A message of somebody else in Redis: *element* at *place* of the list *key*, counted from the right end (-1 and
    below); or in the field *place* of the hash *key*, which has *score* in the sorted set *index*."""

    element: bytes
    key: str
    place: int | bytes
    index: str = ""
    score: float | None = None

    def fields(self, shift: int) -> tuple[Any, ...]:
        """Return what the script takes; *shift* elements to the right of it are gone."""
        place = self.place + shift if isinstance(self.place, int) else self.place
        return self.key, self.index, place, "" if self.score is None else repr(self.score), self.element


@dataclass(frozen=True, slots=True)
class Moved:
    """What one move did: *moved* entries, *passed* those without a list, and *next_in* seconds until another is due."""

    moved: int = 0
    passed: int = 0
    next_in: float = math.inf

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.moved + other.moved, self.passed + other.passed, min(self.next_in, other.next_in))

    def due_next(self, microseconds: int) -> Moved:
        """Return a copy that knows when a shard has something due; below 0: never."""
        return self if microseconds < 0 else replace(self, next_in=min(self.next_in, microseconds / 1e6))


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who waits for due entries: *mine* tells whether the caller does, *left* the seconds until another one may."""

    mine: bool
    leader: str
    left: float


class DelayQueue(DelayView):
    """Entries that wait for their time: pushed with a delay, listed, moved, cancelled, and taken when due.

    States: ``waiting -> in flight -> done``, ``waiting -> moved | cancelled``, ``in flight -> waiting | dead``. An
    entry is due once its due time has passed by the Redis server's clock, never before. Safe for threads and fork.

    *redis* is a URL or a redis-py client. Settings (:class:`redis_queue.settings.Settings`) go by keyword or as a
    whole. With ``shards=N`` the entries are spread by id over N hash tags, for Redis Cluster.
    """

    def push(
        self,
        payload: Any,
        *,
        delay: Seconds | None = None,
        due_at: datetime | None = None,
        id: str | None = None,
        headers: Mapping[str, Any] | None = None,
        destination: str | None = None,
        on_conflict: OnConflict = "replace",
    ) -> str:
        """Store *payload* until *delay* has passed or *due_at* (aware) is reached; return its id.

        Neither means due now. An *id* that is there already is replaced (a debounce; who holds it loses the lease),
        kept as it is, or refused with EntryExistsError. *destination* names a list for :meth:`move_due`.
        """
        item = Push(payload, delay, due_at, id, headers, destination)
        return self.push_many([item], on_conflict=on_conflict)[0]

    def push_many(self, items: Iterable[Push | Any], *, on_conflict: OnConflict = "replace") -> builtins.list[str]:
        """Store many entries (:class:`Push`, or a bare payload that is due now); return their ids in order.

        One round trip per 500 and shard. Each such chunk is stored all or none; chunks before a failing one stay.
        """
        if on_conflict not in _MODES:
            raise InvalidValueError(f"on_conflict={on_conflict!r}: give one of {', '.join(_MODES)}")
        return [id_ for id_, _ in self._push_all(items, on_conflict)]

    def keep_many(self, items: Iterable[Push]) -> builtins.list[bool]:
        """Store entries as :meth:`push_many` does with "keep"; tell for each whether it was stored."""
        return [stored for _, stored in self._push_all(items, "keep")]

    def check(self, item: Push) -> None:
        """Raise what :meth:`push_many` would raise for *item*; nothing is sent to Redis."""
        self._row(item, iter([""]))

    def adopt(self, found: Sequence[tuple[Push, Foreign]]) -> builtins.list[bool | None]:
        """Store messages that stand elsewhere in this Redis and take them out there, each in one atomic step.

        True: done. False: it does not stand there like that any more. None: an entry with its id is stored, whatever
        became of it. With False and None nothing happened. Raises ConfigurationError on Cluster.
        """
        self._check_one_server("adopt")
        rows = [self._row(push, iter([""])) for push, _ in found]
        flags: builtins.list[bool | None] = [False] * len(rows)
        gone = _Gone()
        for shard, group in self._grouped([row[0] for row in rows]):
            if not self._registered:
                self._registry.add("delay", self.name, self.settings)
                self._registered = True
            sized = (
                part for chunk in chunks(group, FOREIGN) for part in by_size((index, rows[index][3]) for index in chunk)
            )
            for part in sized:
                chosen = [index for index, _ in part]
                fields: builtins.list[Any] = []
                for index in chosen:
                    id_, _, due, record = rows[index]
                    fields += [id_bytes(id_), due, *found[index][1].fields(gone.right_of(found[index][1])), record]
                new, reply = shard.call("delay/adopt", now=shard.clock(), more=fields)
                for index, flag in zip(chosen, reply, strict=True):
                    flags[index] = _DELIVERED[flag]
                gone.add([found[index][1] for index in chosen if flags[index]])
                if new:
                    self._registry.add("delay", self.name, self.settings)
        return flags

    def take_out(self, found: Sequence[Foreign], server: Client) -> builtins.list[bool]:
        """Take messages out of where they stand in *server*. False: it does not stand there like that any more."""
        keys, gone = self._shards[0].keys, _Gone()
        script = Scripts(server).bind("delay/adopt", keys, slot=keys.slot(os.urandom(8).hex()))
        flags: builtins.list[bool] = []
        for chunk in chunks(found, FOREIGN):
            fields = [field for item in chunk for field in ("", 0, *item.fields(gone.right_of(item)), "")]
            _, reply = script(now=1, nonce=os.urandom(8).hex(), more=fields)
            flags += [flag == _YES for flag in reply]
            gone.add([item for item, flag in zip(chunk, reply, strict=True) if flag == _YES])
        return flags

    def _push_all(self, items: Iterable[Push | Any], on_conflict: OnConflict) -> Iterator[tuple[str, bool]]:
        for chunk in chunks(items):
            names = iter(new_ids(sum(not isinstance(item, Push) or item.id is None for item in chunk)))
            rows = [self._row(item, names) for item in chunk]
            flags = [False] * len(rows)
            for shard, group in self._grouped([row[0] for row in rows]):
                positions = iter(group)
                for part in by_size([rows[index] for index in group]):
                    for flag in self._push(shard, part, on_conflict):
                        flags[next(positions)] = flag != _NO
            yield from zip([row[0] for row in rows], flags, strict=True)

    def cancel(self, id: str) -> bool:
        """Take an entry out. True: it will never run. False: unknown, or claimed already."""
        return self.cancel_many([id])[0]

    def cancel_many(self, ids: Iterable[str]) -> builtins.list[bool]:
        """Take entries out, as :meth:`cancel` does; one round trip per 500 and shard."""
        flags: builtins.list[bool] = []
        for chunk in chunks(check_id(id_) for id_ in ids):
            answers = [False] * len(chunk)
            for shard, group in self._grouped(chunk):
                reply = shard.call("delay/cancel", more=[id_bytes(chunk[index]) for index in group])
                for index, flag in zip(group, reply, strict=True):
                    answers[index] = flag == _YES
            flags += answers
        return flags

    def reschedule(self, id: str, *, delay: Seconds | None = None, due_at: datetime | None = None) -> bool:
        """Change when a waiting entry is due. False: unknown, or claimed already."""
        wait, due = _when(delay, due_at)
        shard = self._shard(check_id(id))
        return bool(shard.run("delay/reschedule", now=shard.clock(), id=id_bytes(id), delay=wait, due=due))

    def run_now(self, id: str) -> bool:
        """Make a waiting entry due at once. False: unknown, or claimed already."""
        return self.reschedule(id, delay=0)

    def claim(self, limit: int = 1, *, older_than: Seconds = 0, within: Seconds = 0) -> builtins.list[Entry]:
        """Take up to *limit* (1 to 500) due entries under a lease; :meth:`ack` or :meth:`release` them.

        *older_than*: only those due for at least so long; *within*: only those that fell due so recently (0: however
        long ago). Without an ack they are due again when the lease ends and :meth:`put_back` has run.
        """
        check_limit(limit, CHUNK)
        age, recent = duration_ms(older_than, name="older_than"), duration_ms(within, name="within")
        return self._claim_all(limit, age, recent)

    def claim_early(self, limit: int = CHUNK) -> builtins.list[Entry]:
        """Take up to *limit* (1 to 500) waiting entries under a lease, due or not: to empty a queue.

        Without an ack they come back as those of :meth:`claim` do, but not before they are due.
        """
        return self._claim_all(check_limit(limit, CHUNK), -MAX_DELAY_MS, 0)

    def _claim_all(self, limit: int, age: int, within: int) -> builtins.list[Entry]:
        entries: builtins.list[Entry] = []
        # Each call begins with another shard, so that a busy one cannot starve the rest.
        self._turn += 1
        for offset in range(len(self._shards)):
            shard = self._shards[(self._turn + offset) % len(self._shards)]
            while len(entries) < limit:
                found, again = self._claim(shard, limit - len(entries), age, within)
                entries += found
                if not again:
                    break
        return entries

    def ack(self, entry: Entry) -> bool:
        """Finish *entry*. False: the lease was lost; nothing changed."""
        return self.ack_many([entry])[0]

    def ack_many(self, entries: Sequence[Entry]) -> builtins.list[bool]:
        """Finish *entries*; one round trip per 500 and shard."""
        return self._each(entries, lambda shard, part: shard.ack(part))

    def release(
        self, entry: Entry, *, delay: Seconds = 0, reason: str = "", dead: bool = False, counted: bool = True
    ) -> bool:
        """Give *entry* back, due after *delay*; with its last delivery, or *dead*, it becomes a dead letter.

        False: the lease was lost; nothing changed.
        """
        return self.release_many([entry], delay=delay, reason=reason, dead=dead, counted=counted)[0]

    def release_many(
        self,
        entries: Sequence[Entry],
        *,
        delay: Seconds = 0,
        reason: str = "",
        dead: bool = False,
        counted: bool = True,
    ) -> builtins.list[bool]:
        """Give *entries* back, as :meth:`release` does."""
        wait = duration_ms(delay)
        return self._each(
            entries,
            lambda shard, part: shard.release(part, delay=wait, reason=reason, counted=counted or dead, dead=dead),
        )

    def extend(self, entry: Entry, lease: Seconds | None = None) -> bool:
        """Lengthen the lease to *lease* (default: the visibility timeout) from now. False: the lease was lost."""
        length = self.settings.lease_ms if lease is None else max(1, duration_ms(lease, name="lease"))
        return self._each([entry], lambda shard, part: shard.extend(part, length))[0]

    def pop(self, limit: int = 1, *, older_than: Seconds = 0) -> builtins.list[Entry]:
        """Take up to *limit* due entries for good, for those who want data: a claim and an ack.

        A crash between the two, or after them, may lose nothing: what was not acked is due again after its lease.
        """
        entries = self.claim(limit, older_than=older_than)
        kept = self.ack_many(entries)
        return [entry for entry, mine in zip(entries, kept, strict=True) if mine]

    def move_due(self, limit: int = MANY) -> int:
        """Move up to *limit* due entries into the lists that they name, each in one atomic step; return how many.

        The payload arrives as its stored bytes, at the left end. Entries without a destination stay. What cannot be
        moved becomes a dead letter. Only where the lists are in the same Redis: raises ConfigurationError on Cluster.
        """
        self._check_one_server("move_due")
        return self.move(check_limit(limit, MANY)).moved

    def move(self, limit: int = MANY, *, within: Seconds = 0, phrases: Sequence[bytes] = ()) -> Moved:
        """Move as :meth:`move_due` does, and tell more.

        *within*: only what fell due so recently. A payload that begins with byte 1 is written out with *phrases*: each
        byte from 0x82 up stands for one of them, 0x80 for the id and 0x81 for a tag that no other message gets.
        """
        recent = duration_ms(within, name="within")
        total = Moved()
        for shard in self._shards:
            offset, left = 0, limit - total.moved
            while left > 0:
                size = min(left, CHUNK)
                seen, moved, passed, next_in = shard.run(
                    "delay/move_due",
                    now=shard.clock(),
                    limit=size,
                    offset=offset,
                    within=recent,
                    nonce=f"{os.urandom(8).hex()}-",
                    more=phrases,
                )
                offset += passed
                left -= moved
                total += Moved(moved, passed)
                if seen < size:
                    total = total.due_next(next_in)
                    break
        return total

    def deliver(self, rows: Sequence[Delivery]) -> builtins.list[bool | None]:
        """Finish claimed entries and push what they became into lists of this Redis, each in one atomic step.

        True: delivered. False: the lease was lost, nothing happened. None: a list is no list, or Redis is full; the
        entry is still held. Raises ConfigurationError on Cluster.
        """
        self._check_one_server("deliver")
        flags: builtins.list[bool | None] = [None] * len(rows)
        for shard, group in self._grouped([row.entry.id for row in rows]):
            for part in chunks(group, DELIVERIES):
                fields = [field for index in part for field in rows[index].fields()]
                reply = shard.call("delay/deliver", more=fields)
                for index, flag in zip(part, reply, strict=True):
                    flags[index] = _DELIVERED[flag]
        return flags

    def bury_overdue(self, older_than: Seconds, *, reason: str) -> int:
        """Make dead letters of all that have been due for longer than *older_than*; return how many."""
        age, text, total = duration_ms(older_than, name="older_than"), reason.encode(errors="replace"), 0
        for shard in self._shards:
            while found := shard.run("delay/bury", now=shard.clock(), older_than=age, limit=CHUNK, reason=text):
                total += found
        return total

    def lead(self, name: str, lease: Seconds) -> Leadership:
        """Become or stay the one dispatcher that waits for due entries; *lease* 0 steps down.

        Leading saves work and is no lock: entries move safely without it.
        """
        mine, leader, left = self._shards[0].run("delay/lead", member=name, lease=duration_ms(lease, name="lease"))
        return Leadership(bool(mine), leader.decode(errors="replace"), max(0, left) / 1000)

    def _check_one_server(self, verb: str) -> None:
        if isinstance(self.client, redis_py.RedisCluster):
            raise ConfigurationError(f"{verb} writes lists of other hash tags, which Redis Cluster forbids; use claim")

    def put_back(self, limit: int = MANY) -> PutBack:
        """Make due again what up to *limit* expired leases hold; any number of callers may do so at once."""
        left = check_limit(limit, MANY)
        total = PutBack()
        for shard in self._shards:
            done = shard.put_back(left) if left > 0 else PutBack()
            left -= done.returned + done.dead
            total += done
        return total

    def redrive(self, ids: Iterable[str] | None = None, *, rate: float | None = None) -> int:
        """Bring dead letters (default: all) back with all their deliveries, due now or *rate* per second."""
        gap = gap_ms(rate)
        if ids is None:
            return sum(shard.redrive(None, gap * len(self._shards)) for shard in self._shards)
        names = [check_id(id_) for id_ in ids]
        grouped = list(self._grouped(names))
        return sum(shard.redrive([names[index] for index in group], gap * len(grouped)) for shard, group in grouped)

    def purge(self, *places: Place) -> int:
        """Delete everything in *places* (default: waiting) and return how many entries went."""
        for place in places:
            if place not in ("waiting", "dead", "quarantine"):
                raise InvalidValueError(f"purge({place!r}): known places are waiting, dead, quarantine")
        return sum(shard.purge(place) for place in places or ("waiting",) for shard in self._shards)

    def destroy(self) -> None:
        """Delete the queue and everything in it, in flight too, and take it out of the registry."""
        for shard in self._shards:
            shard.destroy()
        self._registry.forget("delay", self.name)
        self._registered = False

    def _row(self, item: Push | Any, names: Iterator[str]) -> tuple[str, int, int, bytes]:
        push = item if isinstance(item, Push) else Push(item)
        if push.destination is not None:
            _check_destination(push.destination)
        wait, due = _when(push.delay, push.due_at)
        record = self._shards[0].codec.encode(push.payload, push.headers, push.destination)
        return (next(names) if push.id is None else check_id(push.id)), wait, due, record

    def _push(self, shard: Shard, rows: Sequence[tuple[str, int, int, bytes]], on_conflict: OnConflict) -> bytes:
        if not self._registered:
            self._registry.add("delay", self.name, self.settings)
            self._registered = True
        new, flags = shard.call(
            "delay/push",
            now=shard.clock(),
            on_conflict=on_conflict,
            more=[field for row in rows for field in row],
        )
        if flags.startswith(b"exists "):
            raise EntryExistsError(f"{self.name}: an entry with id {id_text(flags[7:])!r} is already stored")
        if new:
            # The first push ever, or the first after a FLUSHALL while this object lived.
            self._registry.add("delay", self.name, self.settings)
        return bytes(flags)

    def _claim(self, shard: Shard, limit: int, age: int, within: int) -> tuple[builtins.list[Entry], bool]:
        token, expires, *found = shard.call(
            "delay/claim",
            now=shard.clock(),
            lease=self.settings.lease_ms,
            limit=limit,
            older_than=age,
            within=within,
        )
        if not found:
            return [], token == b"+"
        lease = Lease(token.decode(), from_ms(expires))
        reply = iter(found)
        read = [self._entry(shard, row, lease) for row in zip(reply, reply, reply, reply, strict=True)]
        entries = [entry for entry in read if entry is not None]
        return entries, len(entries) < len(read)

    def _grouped(self, ids: Sequence[str]) -> Iterator[tuple[Shard, builtins.list[int]]]:
        """Yield each shard with the positions of its ids."""
        groups: dict[int, builtins.list[int]] = {}
        for position, id_ in enumerate(ids):
            groups.setdefault(zlib.crc32(id_bytes(id_)) % len(self._shards), []).append(position)
        for number, positions in groups.items():
            yield self._shards[number], positions

    def _each(
        self, entries: Sequence[Entry], call: Callable[[Shard, Sequence[Entry]], Sequence[bool]]
    ) -> builtins.list[bool]:
        flags = [False] * len(entries)
        for shard, group in self._grouped([entry.id for entry in entries]):
            for index, flag in zip(group, call(shard, [entries[index] for index in group]), strict=True):
                flags[index] = flag
        return flags


class _Gone:
    """Which places of lists were emptied: what stands to the left of one moves to the right."""

    def __init__(self) -> None:
        self._places: dict[str, builtins.list[int]] = {}

    def right_of(self, item: Foreign) -> int:
        """Return how many to the right of *item* are gone."""
        places = self._places.get(item.key)
        return len(places) - bisect_right(places, item.place) if places and isinstance(item.place, int) else 0

    def add(self, taken: Sequence[Foreign]) -> None:
        """Note what was taken out."""
        for item in taken:
            if isinstance(item.place, int):
                insort(self._places.setdefault(item.key, []), item.place)


_NO, _YES = b"01"
DELIVERIES: Final = 200
"""Most deliveries in one call: each takes seven arguments or more, and Lua unpacks no more than 8,000 at once."""
FOREIGN: Final = 100
"""Most foreign messages in one call: Redis walks along a list to each of them."""
_DELIVERED: Final = {ord("0"): False, ord("1"): True, ord("2"): None}


def _when(delay: Seconds | None, due_at: datetime | None) -> tuple[int, int]:
    if delay is not None and due_at is not None:
        raise InvalidDelayError(f"delay={delay!r} and due_at={due_at!r}: give one of them")
    if due_at is not None:
        # 0 stands for "use the delay", so a due time at the epoch becomes 1 ms later.
        return 0, max(1, point_ms(due_at))
    return duration_ms(0 if delay is None else delay), 0


def _check_destination(value: str) -> None:
    # Any bytes can name a key, and some lists have control characters in their names: only surrogates cannot be sent.
    if not isinstance(value, str) or not 0 < len(value.encode(errors="surrogatepass")) <= MAX_DESTINATION:
        raise InvalidValueError(f"destination={value!r}: give the name of a Redis list, up to {MAX_DESTINATION} bytes")
    if value.encode(errors="replace").decode() != value:
        raise InvalidValueError(f"destination={value!r}: give the name of a Redis list, up to {MAX_DESTINATION} bytes")
