"""Move entries: due ones to their destinations, and messages that this queue did not write into it."""

from __future__ import annotations

import itertools
import math
import os
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from redis_queue.basics.histogram import Histogram
from redis_queue.basics.times import MAX_DELAY_MS, Seconds, duration_ms, from_ms
from redis_queue.delay.entries import EntryWriter, read_entry
from redis_queue.delay.model import (
    MAX_FIELDS,
    MAX_MOVE_LISTS,
    Claim,
    Delivery,
    Dispatched,
    ForeignMessage,
    Leadership,
    Push,
)
from redis_queue.errors import InvalidValueError
from redis_queue.model import Entry, Lease
from redis_queue.store.base_queue import Shards
from redis_queue.store.chunks import CHUNK, MANY, MAX_CALL_BYTES, by_size, check_limit, chunks, rows_of
from redis_queue.store.connection import Client
from redis_queue.store.ids import id_bytes
from redis_queue.store.records import Records, reason_bytes
from redis_queue.store.scripts import Scripts

DELIVERIES: Final = 200
"""Maximum number of deliveries in one call."""

MAX_FOREIGN_PER_CALL: Final = 100
"""Maximum number of messages in one call: Redis walks along a list to each of them."""

#: The flags in a script's reply: refused, done, not possible now.
OUTCOMES: Final = {ord("0"): False, ord("1"): True, ord("2"): None}


class Moves:
    """Operations of dispatchers on one DelayQueue: ``queue.moves``."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def claim_batch(
        self, limit: int = CHUNK, *, older_than: Seconds = 0, within: Seconds = 0, early: bool = False
    ) -> Claim:
        """Claim as :meth:`DelayQueue.claim` does, and tell whether there may be more.

        *early*: also claim entries that are not due, to empty a queue. Without an ack they come back, but not before
        they are due.
        """
        check_limit(limit, CHUNK)
        age = -MAX_DELAY_MS if early else duration_ms(older_than, name="older_than")
        recent = duration_ms(within, name="within")
        entries: list[Entry] = []
        left = False

        def fill(shard: Records) -> None:
            nonlocal left
            again = True
            while again and len(entries) < limit:
                found, again, more = self._claim(shard, limit - len(entries), age, recent)
                entries.extend(found)
            left = left or more

        _, errors = self._shards.each(fill, self._shards.in_turn())
        # Without this, nobody would get the claimed entries before their lease ends.
        self._shards.report("claim from", errors, done=bool(entries))
        return Claim(entries, left or len(entries) >= limit)

    def move(
        self,
        limit: int = MANY,
        *,
        within: Seconds = 0,
        phrases: Sequence[bytes] = (),
        lists: Sequence[str] | None = None,
        passing: int = MANY,
    ) -> Dispatched:
        """Move as :meth:`DelayQueue.move_due` does, and tell more.

        *within*: only entries that fell due so recently. *passing*: how many entries without a list a move looks at in
        each shard before it leaves the shard; claiming them saves the next move that work. A payload that
        begins with byte 1 is written out with *phrases*: each byte from 0x82 up stands for one of them, 0x80 for the id
        and 0x81 for a unique tag.
        """
        self._shards.check_one_server("move")
        check_limit(limit, MANY)
        recent = duration_ms(within, name="within")
        if lists is not None and len(lists) > MAX_MOVE_LISTS:
            raise InvalidValueError(f"{len(lists)} lists: must be at most {MAX_MOVE_LISTS}")
        names = [] if lists is None else [name.encode() for name in lists]
        total = Dispatched()

        def move(shard: Records) -> None:
            nonlocal total
            offset, left = 0, limit - total.sent
            while left > 0 and offset < passing:
                size = min(left, CHUNK)
                more, moved, passed, next_in, late = shard.run(
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
                total += Dispatched(moved, lateness=Histogram.of(map(int, late.split())), passed=passed)
                if not more:
                    total += Dispatched(next_in=next_in / 1e6 if next_in >= 0 else math.inf)
                    break

        moved, errors = self._shards.each(move)
        self._shards.report("move from", errors, done=bool(moved))
        return replace(total, more=total.sent >= limit)

    def deliver(self, rows: Sequence[Delivery]) -> list[bool | None]:
        """Finish claimed entries and push their elements into lists of this Redis, each entry in one atomic step.

        True: delivered. False: the lease was lost, nothing happened. None: a key is not a list; the entry is still
        held. If Redis is full, a list gets about 500 messages; with more, raises StoreRefusedError, and entries stay
        held. Raises ConfigurationError on Cluster, InvalidValueError for an entry with more lists and
        expiring keys than :data:`redis_queue.delay.model.MAX_LISTS`.
        """
        self._shards.check_one_server("deliver")
        flags: list[bool | None] = [None] * len(rows)
        fields = [row.fields() for row in rows]
        for shard, group in self._shards.grouped([row.entry.id for row in rows]):
            for part in _deliveries(group, rows, fields):
                reply = shard.call("delay/deliver", more=[field for index in part for field in fields[index]])
                for index, flag in zip(part, reply, strict=True):
                    flags[index] = OUTCOMES[flag]
        return flags

    def bury_overdue(self, older_than: Seconds, *, reason: str) -> int:
        """Make dead letters of all entries that have been due for longer than *older_than*; return how many."""
        age, text, total = duration_ms(older_than, name="older_than"), reason.encode(errors="replace"), 0

        def bury(shard: Records) -> None:
            nonlocal total
            while found := shard.run("delay/bury", now=shard.clock(), older_than=age, limit=CHUNK, reason=text):
                total += found

        buried, errors = self._shards.each(bury)
        self._shards.report("bury in", errors, done=bool(buried))
        return total

    def due_in(self) -> float:
        """Return the seconds until the next entry is due by the server's clock: 0 if one is due, inf if none waits."""
        found, errors = self._shards.each(lambda shard: shard.run("delay/head", now=shard.clock()))
        self._shards.report("ask", errors, done=bool(found))
        return min((left / 1e6 for left in found if left >= 0), default=math.inf)

    def lead(self, name: str, lease: Seconds) -> Leadership:
        """Become or stay the one dispatcher that waits for due entries; *lease* 0 steps down.

        A leader that does not listen to its :meth:`wake_channels` is replaced before its lease ends. Leading saves work
        and is not a lock: entries move safely without it.
        """
        # In a Cluster, a node does not know all subscriptions.
        channel = b"" if self._shards.is_cluster else self._shards[0].keys.wake
        length = duration_ms(lease, name="lease")
        mine, leader, left = self._shards[0].run("delay/lead", member=name, lease=length, channel=channel)
        return Leadership(bool(mine), leader.decode(errors="replace"), max(0, left) / 1000)

    def leader(self) -> str | None:
        """Return the dispatcher that waits for due entries, or None."""
        found = self._shards.scripts.command("GET", self._shards[0].keys.leader)
        return None if found is None else str(found.decode(errors="replace"))

    def wake_channels(self) -> list[bytes]:
        """Return the channels that get a message when an entry is due earlier than all before."""
        return [shard.keys.wake for shard in self._shards]

    def _claim(self, shard: Records, limit: int, age: int, within: int) -> tuple[list[Entry], bool, bool]:
        """Claim once; return the result, whether unreadable records require another call, and whether more is due."""
        token, expires, more, *found = shard.call(
            "delay/claim",
            now=shard.clock(),
            lease=self._shards.settings.lease_ms,
            limit=limit,
            older_than=age,
            within=within,
            nonce=os.urandom(8).hex(),
        )
        if not found:
            return [], token == b"+", bool(more)
        lease = Lease(token.decode(), from_ms(expires))
        read = [read_entry(shard, row, lease) for row in rows_of(found, 4)]
        entries = [entry for entry in read if entry is not None]
        return entries, len(entries) < len(read), bool(more)


def _deliveries(group: Sequence[int], rows: Sequence[Delivery], fields: Sequence[Sequence[Any]]) -> Iterator[list[int]]:
    """Yield the positions in *group* in parts that one call takes."""
    part: list[int] = []
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


class Foreign:
    """Operations with foreign messages of one DelayQueue: ``queue.foreign``."""

    def __init__(self, shards: Shards, writer: EntryWriter) -> None:
        self._shards = shards
        self._writer = writer

    def adopt(self, found: Sequence[tuple[Push, ForeignMessage]]) -> list[bool | None]:
        """Store messages as entries and remove them from their old place in this Redis, each in one atomic step.

        True: done. False: the message is no longer there. None: an entry with its id is stored already. With False
        and None nothing happened. Raises ConfigurationError on Cluster.
        """
        self._shards.check_one_server("adopt")
        rows = [self._writer.row(push, iter([""])) for push, _ in found]
        flags: list[bool | None] = [False] * len(rows)
        gaps = _Gaps()
        for shard, group in self._shards.grouped([row[0] for row in rows]):
            taken = ((id_bytes(rows[index][0]), rows[index][2], found[index][1], rows[index][-1]) for index in group)
            outcomes = _take(taken, gaps, partial(self._shards.store, shard, "delay/adopt"))
            for index, outcome in zip(group, outcomes, strict=True):
                flags[index] = outcome
        return flags

    def take_out(self, found: Sequence[ForeignMessage], server: Client) -> list[bool]:
        """Remove messages from their place in *server*. False: the message is no longer there."""
        keys, calls = self._shards[0].keys, itertools.count(1)
        script = Scripts(server).bind("delay/adopt", keys, slot=keys.slot(os.urandom(8).hex()))
        rows = ((b"", 0, message, b"") for message in found)
        outcomes = _take(rows, _Gaps(), lambda *, more: script(now=1, sequence=next(calls), more=more)[1])
        return [outcome is True for outcome in outcomes]

    def bury(self, item: Push, *, reason: str, deliveries: int) -> bool:
        """Store *item*, which has an id, as a dead letter with so many deliveries; replace an older one with its id.

        False: an entry with its id waits or is in flight; nothing was stored.
        """
        id_, *_, record = self._writer.row(item, iter(()))
        stored = self._shards.store(
            self._shards.of(id_),
            "records/add_dead",
            id=id_bytes(id_),
            record=record,
            deliveries=deliveries,
            reason=reason_bytes(reason),
        )
        return bool(stored)


class _Gaps:
    """The places that were emptied in lists: whatever stands to the left of a gap moves to the right."""

    def __init__(self) -> None:
        self._places: dict[str, list[int]] = {}

    def right_of(self, item: ForeignMessage) -> int:
        """Return the number of gaps to the right of *item*."""
        places = self._places.get(item.key)
        return len(places) - bisect_right(places, item.place) if places and isinstance(item.place, int) else 0

    def add(self, taken: Sequence[ForeignMessage]) -> None:
        for item in taken:
            if isinstance(item.place, int):
                insort(self._places.setdefault(item.key, []), item.place)


def _take(
    rows: Iterable[tuple[bytes, int, ForeignMessage, bytes]], gaps: _Gaps, adopt: Callable[..., bytes]
) -> Iterator[bool | None]:
    """Call *adopt* with *rows*, each an id, a due time, a message and a record; yield the outcome of each."""
    for chunk in chunks(rows, MAX_FOREIGN_PER_CALL):
        for part in by_size(chunk, lambda row: len(row[2].element)):
            more: list[Any] = []
            for id_, due, message, record in part:
                more += (id_, due, *message.fields(gaps.right_of(message)), record)
            flags = [OUTCOMES[flag] for flag in adopt(more=more)]
            gaps.add([row[2] for row, flag in zip(part, flags, strict=True) if flag])
            yield from flags
