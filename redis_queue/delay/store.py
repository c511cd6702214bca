"""DelayStore: entries come into a DelayQueue, are changed, and are taken out again by their ids."""

from __future__ import annotations

import builtins
import itertools
import os
import zlib
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import redis as redis_py

from redis_queue.delay.model import Foreign, Push
from redis_queue.delay.view import DelayView
from redis_queue.errors import ConfigurationError, EntryExistsError, InvalidDelayError, InvalidValueError
from redis_queue.model import CancelOutcome
from redis_queue.store.chunks import by_size, chunks
from redis_queue.store.connection import Client
from redis_queue.store.ids import check_id, id_bytes, id_text, new_ids
from redis_queue.store.records import Shard, reason_bytes
from redis_queue.store.scripts import Scripts
from redis_queue.times import Seconds, duration_ms, point_ms

OnConflict = Literal["replace", "keep", "error"]

Conflict = OnConflict | Literal["own"] | int

_MODES: Final = ("replace", "keep", "error")
MAX_DESTINATION: Final = 512
FOREIGN: Final = 100
"""Most foreign messages in one call: Redis walks along a list to each of them."""
_NO, _YES = b"01"
_RENEWED: Final = ord("3")

REMEMBERED: Final = 86_400_000
"""Milliseconds for which a revoke is remembered in Redis. Workers remember it for three hours."""

#: What a flag of a script says of one message.
OUTCOMES: Final = {ord("0"): False, ord("1"): True, ord("2"): None}


class DelayStore(DelayView):
    """The part of :class:`redis_queue.delay.queue.DelayQueue` that stores, changes and cancels."""

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
        kept as it is, or refused with EntryExistsError. *destination* names a list for :meth:`move_due`. Raises
        ConfigurationError where the queue was opened with another number of shards than it has.
        """
        item = Push(payload, delay, due_at, id, headers, destination)
        return self.push_many([item], on_conflict=on_conflict)[0]

    def push_many(self, items: Iterable[Push | Any], *, on_conflict: OnConflict = "replace") -> builtins.list[str]:
        """Store many entries (:class:`Push`, or a bare payload that is due now); return their ids in order.

        One round trip per 500 and shard, and per MiB of records. What goes in one round trip is stored all or none; if
        one fails (EntryExistsError, StoreUnavailableError), those before it stay stored. To call again with the same
        ids and "replace" or "keep" completes it.
        """
        if on_conflict not in _MODES:
            raise InvalidValueError(f"on_conflict={on_conflict!r}: give one of {', '.join(_MODES)}")
        return [id_ for id_, _ in self._push_all(items, on_conflict)]

    def keep_many(self, items: Iterable[Push]) -> builtins.list[bool]:
        """Store entries as :meth:`push_many` does with "keep"; tell for each whether it was stored."""
        return [flag != _NO for _, flag in self._push_all(items, "keep")]

    def renew_many(self, items: Iterable[Push]) -> builtins.list[bool]:
        """Store entries as :meth:`push_many` does with "replace"; tell for each whether its id had been revoked."""
        return [flag == _RENEWED for _, flag in self._push_all(items, "replace")]

    def note_revoked(self, ids: Iterable[str]) -> None:
        """Note that the tasks *ids* are revoked now; entries that are stored later with a mark count as newer."""
        for chunk in chunks(check_id(id_) for id_ in ids):
            for shard, group in self._grouped(chunk):
                known = [id_bytes(chunk[index]) for index in group]
                shard.call("delay/revoke", now=shard.clock(), age=REMEMBERED, more=known)

    def is_renewed(self, id: str, mark: str) -> bool:
        """Tell whether an entry with *mark* was stored after its *id* was revoked; False if that was not noted."""
        key, member = self._shard(check_id(id)).keys.revoked, id_bytes(id)
        stored = self._scripts.command("ZSCORE", key, member + b"\n" + mark.encode())
        if stored is None:
            return False
        revoked = self._scripts.command("ZSCORE", key, member)
        return revoked is not None and float(stored) >= float(revoked)

    def replace_own(self, item: Push) -> bool:
        """Store *item* unless its id is taken by a record without its mark; tell whether it was stored."""
        return next(flag != _NO for _, flag in self._push_all([item], "own"))

    def replace_older(self, item: Push, *, age: Seconds) -> bool:
        """Store *item*; tell whether it was stored.

        A record under its id is kept if it contains its mark, or was stored less than *age* ago by the Redis clock. An
        older record is replaced, whether waiting, in flight or dead.
        """
        return next(flag != _NO for _, flag in self._push_all([item], duration_ms(age, name="age")))

    def check(self, item: Push) -> None:
        """Raise what :meth:`push_many` would raise for *item*; nothing is sent to Redis."""
        self._row(item, iter([""]))

    def bury(self, item: Push, *, reason: str, deliveries: int) -> bool:
        """Store *item*, which has an id, as a dead letter that had so many deliveries.

        One that died under its id before is replaced. False: an entry with its id waits or is in flight; nothing was
        stored.
        """
        id_, *_, record = self._row(item, iter(()))
        shard = self._shard(id_)
        self._register()
        new, stored = shard.call(
            "dead/add",
            now=shard.clock(),
            id=id_bytes(id_),
            record=record,
            deliveries=deliveries,
            reason=reason_bytes(reason),
        )
        if new:
            self._registry.add("delay", self.name, self.settings)
        return bool(stored)

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
            self._register()
            sized = (
                part
                for chunk in chunks(group, FOREIGN)
                for part in by_size((index, rows[index][-1]) for index in chunk)
            )
            for part in sized:
                chosen = [index for index, _ in part]
                fields: builtins.list[Any] = []
                for index in chosen:
                    id_, _, due, _, record = rows[index]
                    fields += [id_bytes(id_), due, *found[index][1].fields(gone.right_of(found[index][1])), record]
                new, reply = shard.call("delay/adopt", now=shard.clock(), more=fields)
                for index, flag in zip(chosen, reply, strict=True):
                    flags[index] = OUTCOMES[flag]
                gone.add([found[index][1] for index in chosen if flags[index]])
                if new:
                    self._registry.add("delay", self.name, self.settings)
        return flags

    def take_out(self, found: Sequence[Foreign], server: Client) -> builtins.list[bool]:
        """Take messages out of where they stand in *server*. False: it does not stand there like that any more."""
        keys, gone = self._shards[0].keys, _Gone()
        script = Scripts(server).bind("delay/adopt", keys, slot=keys.slot(os.urandom(8).hex()))
        flags: builtins.list[bool] = []
        calls = itertools.count(1)
        sized = (part for chunk in chunks(found, FOREIGN) for part in by_size((item, item.element) for item in chunk))
        for part in sized:
            fields = [field for item, _ in part for field in ("", 0, *item.fields(gone.right_of(item)), "")]
            _, reply = script(now=1, sequence=next(calls), more=fields)
            flags += [flag == _YES for flag in reply]
            gone.add([item for (item, _), flag in zip(part, reply, strict=True) if flag == _YES])
        return flags

    def cancel(self, id: str) -> CancelOutcome:
        """Cancel an entry, or delete a dead letter. Only CANCELLED is true: the entry will never run."""
        return self.cancel_many([id])[0]

    def cancel_many(self, ids: Iterable[str]) -> builtins.list[CancelOutcome]:
        """Take entries out, as :meth:`cancel` does; one round trip per 500 and shard."""
        found: builtins.list[CancelOutcome] = []
        for chunk in chunks(check_id(id_) for id_ in ids):
            answers = [CancelOutcome.NOT_FOUND] * len(chunk)
            for shard, group in self._grouped(chunk):
                reply = shard.call("delay/cancel", more=[id_bytes(chunk[index]) for index in group])
                for index, flag in zip(group, reply, strict=True):
                    answers[index] = CancelOutcome(flag - _NO)
            found += answers
        return found

    def reschedule(self, id: str, *, delay: Seconds | None = None, due_at: datetime | None = None) -> bool:
        """Change when a waiting entry is due. False: unknown, or claimed already."""
        return self._reschedule(id, *_when(delay, due_at))

    def run_now(self, id: str, *, due_at: datetime | None = None) -> bool:
        """Make a waiting entry due at once. False: unknown, claimed already, or with *due_at*, not due then."""
        return self._reschedule(id, 0, 0, expected=0 if due_at is None else point_ms(due_at))

    def _reschedule(self, id: str, delay: int, due: int, *, expected: int = 0) -> bool:
        shard = self._shard(check_id(id))
        changes = {"delay": delay, "due": due, "expected": expected}
        return bool(shard.call("delay/reschedule", now=shard.clock(), id=id_bytes(id), **changes))

    def _check_one_server(self, verb: str) -> None:
        if isinstance(self.client, redis_py.RedisCluster):
            raise ConfigurationError(f"{verb} writes lists of other hash tags, which Redis Cluster forbids; use claim")

    def _push_all(self, items: Iterable[Push | Any], on_conflict: Conflict) -> Iterator[tuple[str, int]]:
        for chunk in chunks(items):
            names = iter(new_ids(sum(not isinstance(item, Push) or item.id is None for item in chunk)))
            rows = [self._row(item, names) for item in chunk]
            flags = [_NO] * len(rows)
            for shard, group in self._grouped([row[0] for row in rows]):
                positions = iter(group)
                for part in by_size([rows[index] for index in group]):
                    for flag in self._push(shard, part, on_conflict):
                        flags[next(positions)] = flag
            yield from zip([row[0] for row in rows], flags, strict=True)

    def _row(self, item: Push | Any, names: Iterator[str]) -> tuple[str, int, int, str, bytes]:
        push = item if isinstance(item, Push) else Push(item)
        if push.destination is not None:
            _check_destination(push.destination)
        wait, due = _when(push.delay, push.due_at)
        record = self._shards[0].codec.encode(push.payload, push.headers, push.destination)
        return (next(names) if push.id is None else check_id(push.id)), wait, due, push.mark, record

    def _push(self, shard: Shard, rows: Sequence[tuple[str, int, int, str, bytes]], on_conflict: Conflict) -> bytes:
        self._register()
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

    def _register(self) -> None:
        """Write the queue into the registry before this object stores something for the first time."""
        if not self._registered:
            self._registry.add("delay", self.name, self.settings)
            self._registered = True

    def _grouped(self, ids: Sequence[str]) -> Iterator[tuple[Shard, builtins.list[int]]]:
        """Yield each shard with the positions of its ids."""
        groups: dict[int, builtins.list[int]] = {}
        for position, id_ in enumerate(ids):
            groups.setdefault(zlib.crc32(id_bytes(id_)) % len(self._shards), []).append(position)
        for number, positions in groups.items():
            yield self._shards[number], positions


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
