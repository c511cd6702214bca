"""DelayView: everything that only looks into a DelayQueue."""

from __future__ import annotations

import builtins
import contextlib
import math
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from redis_queue.delay.dispatch_log import DispatchLog
from redis_queue.delay.lateness import DispatcherRow, Dispatches, Minute
from redis_queue.delay.shards import Rounds
from redis_queue.errors import InvalidDelayError, InvalidValueError
from redis_queue.model import DeadLetter, DelayStats, Entry, InFlight, Item, Lease, Quarantined, Unread
from redis_queue.store.chunks import ANY_SIZE, CHUNK, check_budget, check_limit, check_offset
from redis_queue.store.codec import UnreadableError
from redis_queue.store.connection import Client, connect
from redis_queue.store.ids import check_id, id_bytes, id_text
from redis_queue.store.keys import Keys
from redis_queue.store.records import Clock, Shard, server_clock
from redis_queue.store.registry import Registry
from redis_queue.store.scripts import Scripts
from redis_queue.store.settings import Overrides, Settings
from redis_queue.times import END_OF_CALENDAR_MS, MAX_DELAY_MS, Seconds, duration_ms, from_ms, point_ms

if TYPE_CHECKING:
    from typing_extensions import Unpack

Found = TypeVar("Found", DeadLetter, Quarantined, InFlight)

SCAN_BYTES: Final = 2 * 1024 * 1024
"""Most bytes of records that a scan reads at once."""

MAX_DIGITS: Final = 15
"""Digits of a due time in ms within the calendar."""


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


class DelayView:
    """The shards of one DelayQueue, and the looks into them."""

    def __init__(
        self,
        name: str,
        redis: str | Client,
        *,
        settings: Settings | None = None,
        clock: Clock = server_clock,
        **overrides: Unpack[Overrides],
    ) -> None:
        self.name = name
        self.settings = Settings.choose(settings, overrides)
        prefix, count = self.settings.prefix, self.settings.shards
        keys = [Keys(prefix, "delay", name, number) for number in range(count)]
        self.client = connect(redis, check=isinstance(redis, str))
        self._scripts = Scripts(self.client)
        self._registry = Registry(self._scripts, prefix)
        self._registered = False
        self._shards = [Shard(self._scripts, key, self.settings, listed=False, clock=clock) for key in keys]
        self._log = DispatchLog(self._scripts, self._shards[0])
        self._rounds = Rounds(name, self.client)
        self._turn = 0

    def __repr__(self) -> str:
        return f"DelayQueue({self.name!r}, prefix={self.settings.prefix!r}, shards={self.settings.shards})"

    def get(self, id: str) -> Entry | None:
        """Return an entry that waits or is in flight (then *due_at* is the end of its lease), or None."""
        found = self._shard(check_id(id)).run("delay/find", id=id_bytes(id))
        return self._entry(self._shard(id), found, None) if found else None

    def list(
        self,
        *,
        after: str | None = None,
        limit: int = 100,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
        max_bytes: int | None = None,
    ) -> builtins.list[Entry]:
        """Return a page of up to *limit* (1 to 500) waiting entries by due time, then id; :meth:`scan` yields all.

        Left out are those that cannot be read, and those that are due after the end of the calendar. *after* is
        :meth:`cursor` of the last entry seen; pages stay stable while others come and go. What cannot be read does not
        end a page: it is read over, 500 a round trip where there is much of it. Large entries come in round trips of
        about a MiB from each shard, so that a page of them blocks Redis no longer than others. With
        *max_bytes* only so much is read, an equal part of it from each shard: the payload of an entry that does not fit
        is an :class:`Unread`.
        """
        check_limit(limit, CHUNK)
        budget = self._share(max_bytes)
        after_due, after_id = _read_cursor(after) if after is not None else ("", b"")
        low = point_ms(due_after, name="due_after") if due_after is not None else "-inf"
        high = point_ms(due_before, name="due_before") if due_before is not None else END_OF_CALENDAR_MS
        entries: builtins.list[Entry] = []
        size = limit
        while len(entries) < limit:
            rows, more = self._rows(low, high, size, after_due, after_id, budget)
            if max_bytes is not None:
                budget = max(0, budget - sum(len(row[3]) for _, row in rows if isinstance(row[3], bytes)))
            found = (self._entry(shard, row, None) for shard, row in rows)
            readable = [entry for entry in found if entry is not None]
            entries += readable
            if not more:
                break
            # On behind the last row, readable or not. An empty page would mean that nothing follows.
            after_id, _, after_due, _ = rows[-1][1]
            size = min(CHUNK, max(limit - len(entries), 2 * (len(rows) - len(readable))))
        return entries[:limit]

    @staticmethod
    def cursor(entry: HasDueTime) -> str:
        """Return the cursor that continues after *entry*: *after* of :meth:`list` and :meth:`scan`."""
        return f"{round(entry.due_at.timestamp() * 1000)}:{entry.id}"

    def scan(
        self, *, after: str | None = None, due_before: datetime | None = None, due_after: datetime | None = None
    ) -> Iterator[Entry]:
        """Yield all waiting entries that :meth:`list` would return, read up to 500, or about 2 MiB, at a time."""
        while page := self.list(
            after=after, limit=CHUNK, due_before=due_before, due_after=due_after, max_bytes=SCAN_BYTES
        ):
            fit = next((number for number, entry in enumerate(page) if isinstance(entry.payload, Unread)), len(page))
            if not fit:
                page = self.list(after=after, limit=1, due_before=due_before, due_after=due_after)
            for entry in page[: fit or 1]:
                yield entry
                after = self.cursor(entry)

    def __iter__(self) -> Iterator[Entry]:
        """Yield all waiting entries by due time, as :meth:`scan` does."""
        return self.scan()

    def count(self, *, due_before: datetime | None = None, due_after: datetime | None = None) -> int:
        """Count waiting entries, all or those due in a time window (*due_after* included, *due_before* not)."""
        low = point_ms(due_after, name="due_after") if due_after is not None else "-inf"
        high = point_ms(due_before, name="due_before") if due_before is not None else "+inf"
        return sum(shard.run("delay/count", now=1, relative=0, more=(low, high))[1] for shard in self._shards)

    def __len__(self) -> int:
        """Count waiting entries."""
        return self.count()

    def __bool__(self) -> bool:
        return True

    def next_due(self) -> datetime | None:
        """Return when the next waiting entry is due, or None if none waits."""
        return self.stats().next_due

    def forecast(self, buckets: int = 60, *, width: Seconds = 60) -> builtins.list[tuple[datetime, int]]:
        """Count how many entries fall due in each of *buckets* (1 to 500) windows of *width* from now.

        Each item is (start of the window, count); what is overdue counts in the first.
        """
        check_limit(buckets, CHUNK, name="buckets")
        step = duration_ms(width, name="width")
        if not step or step * buckets > MAX_DELAY_MS:
            raise InvalidDelayError(f"width={width!r}: give a positive width that stays within ten years")
        edges = ["-inf", *(step * number for number in range(1, buckets + 1))]
        total = [0] * buckets
        start = 0
        for shard in self._shards:
            now, *counts = shard.run("delay/count", now=shard.clock(), relative=1, more=edges)
            start = start or now
            total = [a + b for a, b in zip(total, counts, strict=True)]
        return [(from_ms(start + step * number), count) for number, count in enumerate(total)]

    def stats(self) -> DelayStats:
        """Count everything, each shard in one consistent look."""
        return sum_stats([shard.run("delay/stats", now=shard.clock()) for shard in self._shards])

    def dead_letters(
        self, *, offset: int = 0, limit: int = 100, max_bytes: int | None = None
    ) -> builtins.list[DeadLetter]:
        """Return a page of dead letters, oldest first; *max_bytes* as :meth:`list` takes it."""
        budget = self._share(max_bytes)
        read = partial(Shard.dead_letters, max_bytes=budget)
        return self._page(read, offset, limit, lambda letter: (letter.died_at, letter.id))

    def quarantined(
        self, *, offset: int = 0, limit: int = 100, max_bytes: int | None = None
    ) -> builtins.list[Quarantined]:
        """Return a page of records that could not be read, shard after shard.

        With *max_bytes* only so much is read: *raw* of a record that does not fit is empty.
        """
        return self._page(partial(Shard.quarantined, max_bytes=self._share(max_bytes)), offset, limit)

    def look(self, id: str, *, max_bytes: int | None = None) -> Item | None:
        """Return the entry *id* in any state, also a dead letter; None if it does not exist.

        With *max_bytes* the body of a larger record is an :class:`Unread`.
        """
        return self._shard(check_id(id)).look(id, check_budget(max_bytes))

    def versions(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the versions of existing *ids*; a version changes when another entry is pushed under the id."""
        groups: dict[Shard, builtins.list[str]] = {}
        for id_ in ids:
            groups.setdefault(self._shard(check_id(id_)), []).append(id_)
        return {id_: version for shard, group in groups.items() for id_, version in shard.versions(group).items()}

    def in_flight(self, *, offset: int = 0, limit: int = 100) -> builtins.list[InFlight]:
        """Return a page of what is in flight, the lease that ends first before the others."""
        return self._page(Shard.in_flight, offset, limit, lambda held: (held.expires_at, held.id))

    def due_in(self) -> float:
        """Return the seconds until the next entry is due by the server's clock; 0 if one is, inf if none waits."""
        found, errors = self._rounds.over(self._shards, lambda shard: shard.run("delay/head", now=shard.clock()))
        self._rounds.settle("ask", errors, done=bool(found))
        return min((left / 1e6 for left in found if left >= 0), default=math.inf)

    def leader(self) -> str | None:
        """Return the dispatcher that waits for due entries, or None."""
        found = self._scripts.command("GET", self._shards[0].keys.leader)
        return None if found is None else str(found.decode(errors="replace"))

    def dispatches(self) -> Dispatches:
        """Return what dispatchers sent since the queue exists, and how late; O(1).

        What one had not written yet when it died is missing: at most a second of it. An entry that came back when a
        lease ended, or that was given back, is late by what passed since then.
        """
        return self._log.totals()

    def minutes(self, limit: int = 60) -> builtins.list[Minute]:
        """Return what was dispatched in each of the last *limit* (1 to 1,440) minutes, oldest first, this one too."""
        return self._log.minutes(limit)

    def dispatchers(self) -> builtins.list[DispatcherRow]:
        """Return the dispatchers that were seen within the last 60 s, by name."""
        return self._log.dispatchers()

    def wake_channels(self) -> builtins.list[bytes]:
        """Return the channels that are told when something is due earlier than all before."""
        return [shard.keys.wake for shard in self._shards]

    def _page(
        self,
        read: Callable[[Shard, int, int], builtins.list[Found]],
        offset: int,
        limit: int,
        order: Callable[[Found], Any] | None = None,
    ) -> builtins.list[Found]:
        """Return a page of what *read* finds in all shards, in *order*; without one, shard after shard."""
        check_offset(offset)
        check_limit(limit, CHUNK)
        if len(self._shards) == 1:
            return read(self._shards[0], offset, limit)
        found = [item for shard in self._shards for item in read(shard, 0, offset + limit)]
        if order is not None:
            found.sort(key=order)
        return found[offset : offset + limit]

    def _share(self, max_bytes: int | None) -> int:
        """Return one shard's part of *max_bytes*."""
        budget = check_budget(max_bytes)
        return ANY_SIZE if budget is None else budget // len(self._shards)

    def _rows(  # noqa: PLR0917 - the arguments of the script
        self, low: int | str, high: int | str, limit: int, after_due: int | str, after_id: bytes, budget: int
    ) -> tuple[builtins.list[tuple[Shard, Sequence[Any]]], bool]:
        """Return the next rows (id, deliveries, due, record) of all shards by due time, then id, and if more follow."""
        rows: builtins.list[tuple[Shard, Sequence[Any]]] = []
        ends: builtins.list[tuple[int, bytes]] = []
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
            # Behind the last row of a shard that stopped early others of it would come first.
            rows = rows[: bisect_right(rows, min(ends), key=_order)]
        return rows[:limit], bool(ends) or len(rows) >= limit

    def _entry(self, shard: Shard, row: Sequence[Any], lease: Lease | None) -> Entry | None:
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

    def _shard(self, id_: str) -> Shard:
        return self._shards[zlib.crc32(id_bytes(id_)) % len(self._shards)]


def sum_stats(rows: Sequence[Sequence[Any]]) -> DelayStats:
    """Return what the script ``delay/stats`` answered for each shard, added up."""
    *counts, firsts = zip(*rows, strict=True)
    waiting, due, in_flight, dead, quarantined = (sum(column) for column in counts)
    first = min((at for at in firsts if at >= 0), default=None)
    return DelayStats(waiting, due, in_flight, dead, quarantined, None if first is None else from_ms(first))


def _order(found: tuple[Shard, Sequence[Any]]) -> tuple[int, bytes]:
    id_, _, due, _ = found[1]
    return due, id_


def _read_cursor(text: str) -> tuple[int, bytes]:
    due, separator, id_ = text.partition(":") if isinstance(text, str) else ("", "", "")
    if separator and due.isascii() and due.isdecimal() and len(due) <= MAX_DIGITS:
        # Half a character is in no id.
        with contextlib.suppress(UnicodeEncodeError):
            return int(due), id_bytes(id_)
    raise InvalidValueError(f"after={text!r}: give DelayQueue.cursor(entry) of the last entry seen")
