"""DelayQueue: a durable timed set."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from redis_queue.delay.lateness import DispatcherRow, Dispatches
from redis_queue.delay.model import MAX_FIELDS, MAX_MOVE_LISTS, Claimed, Delivery, Leadership, Moved
from redis_queue.delay.store import OUTCOMES, DelayStore
from redis_queue.errors import InvalidValueError, StoreError
from redis_queue.model import Entry, Lease, PutBack
from redis_queue.store.chunks import CHUNK, MANY, MAX_CALL_BYTES, check_limit, check_many, gap_ms
from redis_queue.store.ids import check_id
from redis_queue.store.records import Shard
from redis_queue.times import MAX_DELAY_MS, Seconds, duration_ms, from_ms, point_ms

Place = Literal["waiting", "dead", "quarantine"]


class DelayQueue(DelayStore):
    """Entries that wait for their time: pushed with a delay, listed, moved, cancelled, and taken when due.

    States: ``waiting -> in flight -> done``, ``waiting -> moved | cancelled``, ``in flight -> waiting | dead``. An
    entry is due once its due time has passed by the Redis server's clock, never before. Safe for threads and fork.

    *redis* is a URL or a redis-py client. Settings (:class:`redis_queue.store.settings.Settings`) go by keyword or as a
    whole. With ``shards=N`` the entries are spread by id over N hash tags, for Redis Cluster.
    """

    def claim(self, limit: int = 1, *, older_than: Seconds = 0, within: Seconds = 0) -> builtins.list[Entry]:
        """Take up to *limit* (1 to 500) due entries under a lease; :meth:`ack` or :meth:`release` them.

        *older_than*: only those due for at least so long; *within*: only those that fell due so recently (0: however
        long ago). Without an ack they are due again when the lease ends and :meth:`put_back` has run. One round trip to
        each shard reads about 1 MiB of entries: fewer than *limit* may come though more are due. A broken shard
        keeps no other from it; its error is raised where nothing was claimed, else logged.
        """
        return self.claim_batch(limit, older_than=older_than, within=within).entries

    def claim_batch(
        self, limit: int = CHUNK, *, older_than: Seconds = 0, within: Seconds = 0, early: bool = False
    ) -> Claimed:
        """Claim as :meth:`claim` does, and tell whether there may be more.

        *early*: also claim entries that are not due, to empty a queue. Without an ack they come back, but not before
        they are due.
        """
        check_limit(limit, CHUNK)
        age = -MAX_DELAY_MS if early else duration_ms(older_than, name="older_than")
        recent = duration_ms(within, name="within")
        entries: builtins.list[Entry] = []
        left = False

        def fill(shard: Shard) -> None:
            nonlocal left
            again = True
            while again and len(entries) < limit:
                found, again, more = self._claim(shard, limit - len(entries), age, recent)
                entries.extend(found)
            left = left or more

        # Each call begins with another shard, so that a busy one cannot starve the rest.
        self._turn += 1
        first = self._turn % len(self._shards)
        _, errors = self._rounds.over([*self._shards[first:], *self._shards[:first]], fill)
        # Nobody else would have what was claimed before its lease ends.
        self._rounds.settle("claim from", errors, done=bool(entries))
        return Claimed(entries, left or len(entries) >= limit)

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

        At most once from the ack on: what was acked is lost with who crashes before it has worked on it, or with an
        ack whose every reply was lost, which raises StoreUnavailableError. What was not acked is due again after its
        lease. For at least once, :meth:`claim`, work, then :meth:`ack`.
        """
        entries = self.claim(limit, older_than=older_than)
        kept, errors = self._flags(entries, lambda shard, part: shard.ack(part))
        popped = [entry for entry, mine in zip(entries, kept, strict=True) if mine]
        # What was acked is nowhere else any more.
        self._rounds.settle("ack in", errors, done=bool(popped))
        return popped

    def move_due(self, limit: int = MANY, *, lists: Sequence[str] | None = None) -> int:
        """Move up to *limit* due entries into the lists that they name, each in one atomic step; return how many.

        *lists*: move only into these lists (at most 2,000). Without it, a client that may push entries can write into
        any list that the caller may write. The payload is pushed as its stored bytes, at the left end. Entries stay
        due, for :meth:`claim`, if their destination is missing, not in *lists*, or a key that is not a list. Only
        works if the lists are in the same Redis: raises ConfigurationError on Cluster, InvalidValueError for more than
        2,000 lists.
        """
        self._check_one_server("move_due")
        return self.move(check_limit(limit, MANY), lists=lists).moved

    def move(
        self,
        limit: int = MANY,
        *,
        within: Seconds = 0,
        phrases: Sequence[bytes] = (),
        lists: Sequence[str] | None = None,
        passing: int = MANY,
    ) -> Moved:
        """Move as :meth:`move_due` does, and tell more.

        *within*: only what fell due so recently. *passing*: entries that stay, of a shard, after which it is left; who
        claims them before the next move spares each move a look at all of them. A payload that begins with byte 1 is
        written out with *phrases*: each byte from 0x82 up stands for one of them, 0x80 for the id and 0x81 for a tag
        that no other message gets.
        """
        recent = duration_ms(within, name="within")
        if lists is not None and len(lists) > MAX_MOVE_LISTS:
            raise InvalidValueError(f"{len(lists)} lists: give at most {MAX_MOVE_LISTS}")
        names = [] if lists is None else [name.encode() for name in lists]
        total = Moved()

        def move(shard: Shard) -> None:
            nonlocal total
            offset, left = 0, limit - total.moved
            while left > 0 and offset < passing:
                size = min(left, CHUNK)
                more, moved, passed, next_in, *late = shard.run(
                    "delay/move_due",
                    now=shard.clock(),
                    limit=size,
                    offset=offset,
                    within=recent,
                    nonce=f"{os.urandom(8).hex()}-",
                    lists=-1 if lists is None else len(names),
                    more=[*names, *phrases],
                )
                offset += passed
                left -= moved
                total += Moved.told(moved, passed, late)
                if not more:
                    total = total.due_next(next_in)
                    break

        moved, errors = self._rounds.over(self._shards, move)
        self._rounds.settle("move from", errors, done=bool(moved))
        return total

    def deliver(self, rows: Sequence[Delivery]) -> builtins.list[bool | None]:
        """Finish claimed entries and push what they became into lists of this Redis, each in one atomic step.

        True: delivered. False: the lease was lost, nothing happened. None: a key is not a list, or Redis is full; the
        entry is still held. Raises ConfigurationError on Cluster, InvalidValueError for an entry with more lists and
        expiring keys than :data:`redis_queue.delay.model.MAX_LISTS`.
        """
        self._check_one_server("deliver")
        flags: builtins.list[bool | None] = [None] * len(rows)
        fields = [row.fields() for row in rows]
        for shard, group in self._grouped([row.entry.id for row in rows]):
            for part in _deliveries(group, rows, fields):
                reply = shard.call("delay/deliver", more=[field for index in part for field in fields[index]])
                for index, flag in zip(part, reply, strict=True):
                    flags[index] = OUTCOMES[flag]
        return flags

    def bury_overdue(self, older_than: Seconds, *, reason: str) -> int:
        """Make dead letters of all that have been due for longer than *older_than*; return how many."""
        age, text, total = duration_ms(older_than, name="older_than"), reason.encode(errors="replace"), 0

        def bury(shard: Shard) -> None:
            nonlocal total
            while found := shard.run("delay/bury", now=shard.clock(), older_than=age, limit=CHUNK, reason=text):
                total += found

        buried, errors = self._rounds.over(self._shards, bury)
        self._rounds.settle("bury in", errors, done=bool(buried))
        return total

    def note_dispatches(
        self, done: Dispatches, *, worst: float = 0.0, dispatcher: DispatcherRow | None = None, left: bool = False
    ) -> None:
        """Add what a dispatcher did to :meth:`dispatches` and :meth:`minutes`; one round trip.

        *worst* is the greatest lateness of *done* in seconds. *dispatcher*, whose *seen_at* is not read, is seen now
        and among :meth:`dispatchers` for a minute, or with *left* no longer.
        """
        self._log.write(done, worst, dispatcher, left=left)

    def lead(self, name: str, lease: Seconds) -> Leadership:
        """Become or stay the one dispatcher that waits for due entries; *lease* 0 steps down.

        Leading saves work and is no lock: entries move safely without it.
        """
        mine, leader, left = self._shards[0].run("delay/lead", member=name, lease=duration_ms(lease, name="lease"))
        return Leadership(bool(mine), leader.decode(errors="replace"), max(0, left) / 1000)

    def put_back(self, limit: int = MANY) -> PutBack:
        """Make due again what up to *limit* expired leases hold; any number of callers may do so at once.

        A broken shard keeps no other from it; its error is raised where nothing was put back, else logged.
        """
        check_limit(limit, MANY)
        total = PutBack()

        def put_back(shard: Shard) -> None:
            nonlocal total
            left = limit - total.returned - total.dead
            total += shard.put_back(left) if left > 0 else PutBack()

        _, errors = self._rounds.over(self._shards, put_back)
        self._rounds.settle("put back in", errors, done=total != PutBack())
        return total

    def redrive(self, ids: Iterable[str] | None = None, *, rate: float | None = None) -> int:
        """Bring dead letters (default: all) back with all their deliveries, due now or *rate* per second."""
        gap = gap_ms(rate)
        if ids is None:
            return sum(shard.redrive(None, gap * len(self._shards)) for shard in self._shards)
        names = [check_id(id_) for id_ in ids]
        grouped = list(self._grouped(names))
        return sum(shard.redrive([names[index] for index in group], gap * len(grouped)) for shard, group in grouped)

    def delete_dead(self, ids: Iterable[str], *, until: datetime | None = None) -> int:
        """Delete single dead letters; return how many. With *until*, only those that died until then.

        So an entry that was redriven and died again after you listed it is kept, if *until* is the time of the list.
        """
        names = [check_id(id_) for id_ in check_many(ids, name="ids")]
        latest = 0 if until is None else point_ms(until, name="until")
        return sum(
            shard.delete_dead([names[index] for index in group], latest) for shard, group in self._grouped(names)
        )

    def purge(self, *places: Place, limit: int = MANY) -> int:
        """Delete up to *limit* entries in *places* (default: waiting) and return how many went.

        The quarantine goes as a whole.
        """
        for place in places:
            if place not in ("waiting", "dead", "quarantine"):
                raise InvalidValueError(f"purge({place!r}): known places are waiting, dead, quarantine")
        check_limit(limit, MANY)
        total = 0
        for place in places or ("waiting",):
            for shard in self._shards:
                if total < limit:
                    total += shard.purge(place, limit - total)
        return total

    def destroy(self) -> None:
        """Delete the queue and everything in it, in flight too, and take it out of the registry."""
        for shard in self._shards:
            shard.destroy()
        self._registry.forget("delay", self.name)
        self._registered = False

    def _claim(self, shard: Shard, limit: int, age: int, within: int) -> tuple[builtins.list[Entry], bool, bool]:
        """Claim once; return the result, whether unreadable records require another call, and whether more is due."""
        token, expires, more, *found = shard.call(
            "delay/claim",
            now=shard.clock(),
            lease=self.settings.lease_ms,
            limit=limit,
            older_than=age,
            within=within,
            nonce=os.urandom(8).hex(),
        )
        if not found:
            return [], token == b"+", bool(more)
        lease = Lease(token.decode(), from_ms(expires))
        reply = iter(found)
        read = [self._entry(shard, row, lease) for row in zip(reply, reply, reply, reply, strict=True)]
        entries = [entry for entry in read if entry is not None]
        return entries, len(entries) < len(read), bool(more)

    def _each(
        self, entries: Sequence[Entry], call: Callable[[Shard, Sequence[Entry]], Sequence[bool]]
    ) -> builtins.list[bool]:
        flags, errors = self._flags(entries, call)
        self._rounds.settle("settle in", errors, done=False)
        return flags

    def _flags(
        self, entries: Sequence[Entry], call: Callable[[Shard, Sequence[Entry]], Sequence[bool]]
    ) -> tuple[builtins.list[bool], Sequence[StoreError]]:
        """Return what *call* says of each of *entries*, False where a shard broke, and the errors."""
        flags = [False] * len(entries)
        groups = dict(self._grouped([entry.id for entry in entries]))

        def settle(shard: Shard) -> None:
            group = groups[shard]
            for index, flag in zip(group, call(shard, [entries[index] for index in group]), strict=True):
                flags[index] = flag

        _, errors = self._rounds.over(groups, settle)
        return flags, errors


def _deliveries(
    group: Sequence[int], rows: Sequence[Delivery], fields: Sequence[Sequence[Any]]
) -> Iterator[builtins.list[int]]:
    """Yield the positions in *group* in parts that one call takes."""
    part: builtins.list[int] = []
    width = size = 0
    for index in group:
        stored = len(rows[index].element) * len(rows[index].lists)
        full = len(part) == DELIVERIES or width + len(fields[index]) > MAX_FIELDS or size + stored > MAX_CALL_BYTES
        if part and full:
            yield part
            part, width, size = [], 0, 0
        part.append(index)
        width += len(fields[index])
        size += stored
    if part:
        yield part


_NO, _YES = b"01"
DELIVERIES: Final = 200
"""Most deliveries in one call."""
