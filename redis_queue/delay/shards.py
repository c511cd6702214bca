"""The hash tags over which a DelayQueue is spread, and the entries and pages that are read from them."""

from __future__ import annotations

import contextlib
import math
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar, overload

import redis

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import from_ms
from redis_queue.errors import ConfigurationError, InvalidValueError, StoreError, StoreUnavailableError
from redis_queue.model import DeadLetter, Entry, InFlight, Lease, Quarantined, Unread
from redis_queue.store.chunks import ANY_SIZE, CHUNK, check_budget, check_limit, check_offset, chunks
from redis_queue.store.codec import UnreadableError
from redis_queue.store.connection import Client
from redis_queue.store.ids import id_bytes, id_text
from redis_queue.store.keys import Keys
from redis_queue.store.records import Records
from redis_queue.store.scripts import Clock, Scripts
from redis_queue.store.settings import Settings

logger = logger_of(__name__)

Found = TypeVar("Found")
Row = TypeVar("Row", DeadLetter, Quarantined, InFlight)

QUIET: Final = 10.0
"""Seconds between two warnings about the same verb: a dispatcher calls many times a second."""

#: The flags in a script's reply: refused, done, not possible now.
OUTCOMES: Final = {ord("0"): False, ord("1"): True, ord("2"): None}

MAX_DIGITS: Final = 15
"""Digits of a due time in ms within the calendar."""


class Shards(Sequence[Records]):
    """The shards of one DelayQueue. An id always belongs to the same one; a broken one does not block the others."""

    def __init__(self, name: str, client: Client, settings: Settings, clock: Clock) -> None:
        self.name = name
        self.client = client
        self.settings = settings
        self.scripts = Scripts(client)
        self._cluster = isinstance(client, redis.RedisCluster)
        self._shards = [
            Records(self.scripts, Keys(settings.prefix, "delay", name, number), settings, listed=False, clock=clock)
            for number in range(settings.shards)
        ]
        self._turn = 0
        self._warned_at: dict[str, float] = {}

    @overload
    def __getitem__(self, index: int) -> Records: ...

    @overload
    def __getitem__(self, index: slice) -> list[Records]: ...

    def __getitem__(self, index: int | slice) -> Records | list[Records]:
        return self._shards[index]

    def __len__(self) -> int:
        return len(self._shards)

    def of(self, id: str) -> Records:
        """Return the shard of *id*."""
        return self._shards[self._number(id)]

    def grouped(self, ids: Sequence[str]) -> Iterator[tuple[Records, list[int]]]:
        """Yield each shard of *ids* with the positions of its ids."""
        if ids and len(self._shards) == 1:
            yield self._shards[0], list(range(len(ids)))
            return
        groups: dict[int, list[int]] = {}
        for position, id_ in enumerate(ids):
            groups.setdefault(self._number(id_), []).append(position)
        for number, positions in groups.items():
            yield self._shards[number], positions

    def in_turn(self) -> list[Records]:
        """Return all shards; each call begins with another one, so that a busy shard cannot starve the rest."""
        self._turn += 1
        first = self._turn % len(self._shards)
        return [*self._shards[first:], *self._shards[:first]]

    def each(
        self, work: Callable[[Records], Found], shards: Iterable[Records] | None = None
    ) -> tuple[list[Found], Sequence[StoreError]]:
        """Return what *work* returns for each of *shards* (default: all), and the errors of broken ones.

        If all of them are on one server, its absence ends the loop: the others would only wait for it again.
        """
        found: list[Found] = []
        errors: list[StoreError] = []
        for shard in self._shards if shards is None else shards:
            try:
                found.append(work(shard))
            except StoreError as error:
                errors.append(error)
                if not self._cluster and isinstance(error, StoreUnavailableError):
                    break
        return found, errors

    def report(self, verb: str, errors: Sequence[StoreError], *, done: bool) -> None:
        """Raise the first of *errors*, if any; if something was *done* in spite of it, only log it."""
        if not errors:
            return
        if not done:
            raise errors[0]
        now = time.monotonic()
        if now - self._warned_at.get(verb, -math.inf) >= QUIET:
            self._warned_at[verb] = now
            logger.warning(
                "%s: cannot %s every shard: %s",
                self.name,
                verb,
                errors[0],
                extra={"action": "shard_failed", "broken": len(errors)},
            )

    def settle(
        self, entries: Sequence[Entry], call: Callable[[Records, Sequence[Entry]], Sequence[bool]]
    ) -> list[bool]:
        """Return the flags of *call*, which settles the entries of one shard, for each of *entries*.

        All shards are called; then the first error is raised.
        """
        flags, errors = self.try_settle(entries, call)
        self.report("settle in", errors, done=False)
        return flags

    def try_settle(
        self, entries: Sequence[Entry], call: Callable[[Records, Sequence[Entry]], Sequence[bool]]
    ) -> tuple[list[bool], Sequence[StoreError]]:
        """Settle as :meth:`settle` does; return the flags, False in a broken shard, and the errors."""
        flags = [False] * len(entries)
        groups = dict(self.grouped([entry.id for entry in entries]))

        def settle(shard: Records) -> None:
            group = groups[shard]
            for index, flag in zip(group, call(shard, [entries[index] for index in group]), strict=True):
                flags[index] = flag

        _, errors = self.each(settle, groups)
        return flags, errors

    def page(
        self,
        read: Callable[[Records, int, int], list[Row]],
        offset: int,
        limit: int,
        order: Callable[[Row], Any] | None = None,
    ) -> list[Row]:
        """Return a page of what *read* finds in all shards, in *order*; without an order, shard after shard."""
        check_offset(offset)
        check_limit(limit, CHUNK)
        if len(self._shards) == 1:
            return read(self._shards[0], offset, limit)
        found = [item for shard in self._shards for item in read(shard, 0, offset + limit)]
        if order is not None:
            found.sort(key=order)
        return found[offset : offset + limit]

    def share(self, max_bytes: int | None) -> int:
        """Return one shard's part of *max_bytes*."""
        budget = check_budget(max_bytes)
        return ANY_SIZE if budget is None else budget // len(self._shards)

    def check_one_server(self, verb: str) -> None:
        """Raise ConfigurationError on Redis Cluster."""
        if self._cluster:
            raise ConfigurationError(f"{verb} writes lists of other hash tags, which Redis Cluster forbids; use claim")

    def _number(self, id_: str) -> int:
        return zlib.crc32(id_bytes(id_)) % len(self._shards)


class HasDueTime(Protocol):
    """Object with an id and a due time: an entry, or a stored task."""

    @property
    def id(self) -> str:
        """The id."""
        ...

    @property
    def due_at(self) -> datetime:
        """Due time."""
        ...


class EntryReader:
    """Reads entries, and pages of them over all shards."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def entry(self, shard: Records, row: Sequence[Any], lease: Lease | None) -> Entry | None:
        """Return the entry of *row* (id, deliveries, due time, record or its size); None for an unreadable record.

        With a *lease* an unreadable record goes to quarantine.
        """
        raw_id, deliveries, due, record = row
        id_, due_at = id_text(raw_id), from_ms(due)
        if isinstance(record, int):
            return Entry(id_, Unread(record), {}, from_ms(0), due_at, deliveries)
        try:
            put_at, headers, payload, destination = shard.codec.decode(record)
        except UnreadableError as error:
            if lease is not None:
                shard.set_aside(Entry(id_, None, {}, due_at, due_at, lease=lease), str(error))
            return None
        return Entry(id_, payload, headers, from_ms(put_at), due_at, deliveries, destination, lease)

    def find(self, ids: Sequence[str]) -> dict[str, tuple[Entry | None, bool]]:
        """Return those of *ids* that are entries or dead letters: each, None if unreadable, and whether it is dead.

        The *due_at* of an entry in flight is the end of its lease, that of a dead letter when it died. It takes one
        call for each shard and every 500 ids, or 1 MiB.
        """
        found: dict[str, tuple[Entry | None, bool]] = {}
        for chunk in chunks(ids):
            for shard, group in self._shards.grouped(chunk):
                left = [id_bytes(chunk[index]) for index in group]
                while left:
                    seen, *values = shard.run("delay/find", more=left)
                    rows = iter(values)
                    for *row, is_dead in zip(rows, rows, rows, rows, rows, strict=True):
                        found[id_text(row[0])] = self.entry(shard, row, None), bool(is_dead)
                    left = left[seen:]
        return found

    def page(
        self, low: int | str, high: int | str, limit: int, after: str | None, max_bytes: int | None
    ) -> list[Entry]:
        """Return a page of waiting entries due from *low* to *high* (ms) by due time, then id.

        *after* is a cursor, *max_bytes* most bytes of records.
        """
        budget = self._shards.share(max_bytes)
        after_due, after_id = parse_cursor(after) if after is not None else ("", b"")
        entries: list[Entry] = []
        size = limit
        while len(entries) < limit:
            rows, more = self._rows(low, high, size, after_due, after_id, budget)
            if max_bytes is not None:
                budget = max(0, budget - sum(len(row[3]) for _, row in rows if isinstance(row[3], bytes)))
            found = (self.entry(shard, row, None) for shard, row in rows)
            readable = [entry for entry in found if entry is not None]
            entries += readable
            if not more:
                break
            # Go on after the last row, readable or not: an empty page would mean that nothing follows.
            after_id, _, after_due, _ = rows[-1][1]
            size = min(CHUNK, max(limit - len(entries), 2 * (len(rows) - len(readable))))
        return entries[:limit]

    def _rows(  # noqa: PLR0917 - the arguments of the script
        self, low: int | str, high: int | str, limit: int, after_due: int | str, after_id: bytes, budget: int
    ) -> tuple[list[tuple[Records, Sequence[Any]]], bool]:
        """Return the next rows of all shards by due time, then id, and whether more follow."""
        rows: list[tuple[Records, Sequence[Any]]] = []
        ends: list[tuple[int, bytes]] = []
        for shard in self._shards:
            cut, *found = shard.run(
                "delay/list",
                low=low,
                high=high,
                limit=limit,
                after_due=after_due,
                after_id=after_id,
                budget=budget,
            )
            reply = iter(found)
            rows += [(shard, row) for row in zip(reply, reply, reply, reply, strict=True)]
            if cut:
                ends.append(_order(rows[-1]))
        rows.sort(key=_order)
        if ends:
            # After the last row of a shard that stopped early, others of that shard would come first.
            rows = rows[: bisect_right(rows, min(ends), key=_order)]
        return rows[:limit], bool(ends) or len(rows) >= limit


def format_cursor(entry: HasDueTime) -> str:
    """Return the cursor that continues after *entry*."""
    return f"{round(entry.due_at.timestamp() * 1000)}:{entry.id}"


def parse_cursor(text: str) -> tuple[int, bytes]:
    """Return due time in ms and id of a cursor. Raises InvalidValueError."""
    due, separator, id_ = text.partition(":") if isinstance(text, str) else ("", "", "")
    if separator and due.isascii() and due.isdecimal() and len(due) <= MAX_DIGITS:
        # Half a character is in no id.
        with contextlib.suppress(UnicodeEncodeError):
            return int(due), id_bytes(id_)
    raise InvalidValueError(f"after={text!r}: must be DelayQueue.cursor(entry) of the last entry seen")


def _order(found: tuple[Records, Sequence[Any]]) -> tuple[int, bytes]:
    id_, _, due, _ = found[1]
    return due, id_
