"""Read entries out of their shards."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from redis_queue.basics.times import from_ms
from redis_queue.delay.shards import Shards
from redis_queue.errors import InvalidValueError
from redis_queue.model import Entry, Lease, Unread
from redis_queue.store.chunks import CHUNK
from redis_queue.store.codec import UnreadableError
from redis_queue.store.ids import id_bytes, id_text
from redis_queue.store.records import Records

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
