"""Entries: read and store them, tell several calls with one id apart, and remember which ids were revoked."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import IntEnum
from typing import Any, Final, Literal, NamedTuple, Protocol

from redis_queue.basics.times import Seconds, duration_ms, from_ms, point_ms
from redis_queue.delay.model import Conflict, Push
from redis_queue.errors import EntryExistsError, InvalidDelayError, InvalidValueError, StoreError
from redis_queue.model import CancelOutcome, Entry, Lease, Unread
from redis_queue.store.base_queue import Shards
from redis_queue.store.chunks import CHUNK, by_size, chunks, rows_of
from redis_queue.store.ids import check_id, id_bytes, id_text, is_id, new_ids
from redis_queue.store.keys import FlowKeys
from redis_queue.store.records import Records
from redis_queue.store.redis_errors import UNKNOWN

MAX_DESTINATION: Final = 512

REMEMBERED: Final = 86_400_000
"""Milliseconds for which a revoke is remembered. Stock workers remember it for three hours, until they restart."""

MAX_REVOKED: Final = 100_000
"""Maximum number of revoked ids that are remembered, as in lua/delay/cancel.lua."""

PAGE: Final = 1000
"""Revoked ids that are read at once."""

Verb = Literal["remove", "cancel", "revoke", "revoked", "discarded"]
"""What lua/delay/cancel.lua does with an id: it removes the entry, notes that its task is revoked, or only notes it."""

MAX_UNIQUE_PER_CALL: Final = 200
"""Entries of unique tasks in one call: each takes several times as long as another one."""

MAX_DIGITS: Final = 15
"""Digits of a due time in ms within the calendar."""


class PushFlag(IntEnum):
    """What became of a pushed entry, as lua/delay/push.lua tells it."""

    #: It was not stored: its id exists.
    KEPT = ord("0")
    STORED = ord("1")
    #: It was stored instead of another one with its id, which was never claimed.
    REPLACED = ord("2")
    #: It was stored after its id had been revoked.
    RENEWED = ord("3")
    #: It was stored instead of another one with its id, which was claimed before: that one may have been sent.
    REPLACED_CLAIMED = ord("4")


OUTCOMES: Final = {ord(str(int(outcome))): outcome for outcome in CancelOutcome}


class Cancelled(NamedTuple):
    """The outcome for an id, None if it stays, its entry, if read, and whether a dead letter stays."""

    outcome: CancelOutcome | None
    entry: Entry | None
    is_dead: bool


class HasDueTime(Protocol):
    """Object with an id and a due time: an entry, or a stored task."""

    @property
    def id(self) -> str:
        """The id."""

    @property
    def due_at(self) -> datetime:
        """Due time."""


def read_entry(shard: Records, row: Sequence[Any], lease: Lease | None) -> Entry | None:
    """Return the entry of *row* (id, deliveries, due time, record or its size); None for an unreadable record.

    With a *lease* an unreadable record goes to quarantine.
    """
    raw_id, deliveries, due, record = row
    id_, due_at = id_text(raw_id), from_ms(due)
    if isinstance(record, int):
        return Entry(id_, Unread(record), {}, from_ms(0), due_at, deliveries)
    found = shard.decode(id_, record, lease)
    if found is None:
        return None
    put_at, headers, payload, destination = found
    return Entry(id_, payload, headers, from_ms(put_at), due_at, deliveries, destination, lease)


class EntryReader:
    """Reads entries, and pages of them over all shards: ``queue.reader``."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def find(self, ids: Sequence[str]) -> dict[str, tuple[Entry | None, bool]]:
        """Return those of *ids* that are entries or dead letters: each, None if unreadable, and whether it is dead.

        The *due_at* of an entry in flight is the end of its lease, that of a dead letter when it died. It takes one
        call for each shard and every 500 ids, or 1 MiB.
        """
        found: dict[str, tuple[Entry | None, bool]] = {}

        def find(shard: Records, more: list[Any]) -> Sequence[None]:
            seen, *values = shard.run("delay/find", more=more)
            for *row, is_dead in rows_of(values, 5):
                found[id_text(row[0])] = read_entry(shard, row, None), bool(is_dead)
            return [None] * seen

        self._shards.ask(zip(ids), find)
        return found

    def is_dead(self, id: str) -> bool:
        """Return whether the entry *id* is a dead letter."""
        key = self._shards.of(check_id(id)).keys.dead
        return self._shards.scripts.command("ZSCORE", key, id_bytes(id)) is not None

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
            rows, more = self._rows(size, low=low, high=high, after_due=after_due, after_id=after_id, budget=budget)
            budget = max(0, budget - sum(len(row[3]) for _, row in rows if isinstance(row[3], bytes)))
            found = (read_entry(shard, row, None) for shard, row in rows)
            readable = [entry for entry in found if entry is not None]
            entries += readable
            if not more:
                break
            # Go on after the last row, readable or not: an empty page would mean that nothing follows.
            after_id, _, after_due, _ = rows[-1][1]
            size = min(CHUNK, max(limit - len(entries), 2 * (len(rows) - len(readable))))
        return entries[:limit]

    def _rows(self, limit: int, **window: Any) -> tuple[list[tuple[Records, Sequence[Any]]], bool]:
        """Return the next rows of all shards in *window* by due time, then id, and whether more follow."""
        rows: list[tuple[Records, Sequence[Any]]] = []
        ends: list[tuple[int, bytes]] = []
        for shard in self._shards:
            cut, *found = shard.run("delay/list", limit=limit, **window)
            rows += [(shard, row) for row in rows_of(found, 4)]
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


class EntryWriter:
    """Stores entries."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def push(self, items: Iterable[Push | Any], on_conflict: Conflict) -> Iterator[tuple[str, int]]:
        """Store *items*; yield the id and the flag of each, in order."""
        for chunk in chunks(items):
            names = iter(new_ids(sum(not isinstance(item, Push) or item.id is None for item in chunk)))
            rows = [self.row(item, names) for item in chunk]
            flags: list[int] = [PushFlag.KEPT] * len(rows)
            stored = False
            for shard, group in self._shards.grouped([row[0] for row in rows]):
                positions = iter(group)
                for part in by_size([rows[index] for index in group]):
                    more = [field for row in part for field in row]
                    try:
                        reply = bytes(self._shards.store(shard, "delay/push", on_conflict=on_conflict, more=more))
                    except StoreError as error:
                        if not stored or UNKNOWN in str(error):
                            raise
                        raise type(error)(f"{error}{UNKNOWN}") from error.__cause__
                    stored = True
                    if reply.startswith(b"exists "):
                        id_ = id_text(reply[7:])
                        raise EntryExistsError(f"{self._shards.name}: an entry with id {id_!r} is already stored")
                    for flag in reply:
                        flags[next(positions)] = flag
            yield from zip([row[0] for row in rows], flags, strict=True)

    def row(self, item: Push | Any, names: Iterator[str]) -> tuple[str, int, int, str, bytes]:
        """Return id, delay, due time, mark and record of *item*; without an id it gets the next of *names*."""
        push = item if isinstance(item, Push) else Push(item)
        if push.destination is not None:
            _check_destination(push.destination)
        wait, due = when(push.delay, push.due_at)
        record = self._shards[0].codec.encode(push.payload, push.headers, push.destination)
        return (next(names) if push.id is None else check_id(push.id)), wait, due, push.mark, record


def when(delay: Seconds | None, due_at: datetime | None) -> tuple[int, int]:
    """Return delay and due time in ms; one of them is 0. Raises InvalidDelayError for both, or an invalid one."""
    if delay is not None and due_at is not None:
        raise InvalidDelayError(f"delay={delay!r} and due_at={due_at!r}: must not both be given")
    if due_at is not None:
        # 0 means "use the delay", so a due time at the epoch becomes 1 ms later.
        return 0, max(1, point_ms(due_at))
    return duration_ms(0 if delay is None else delay), 0


def _check_destination(value: str) -> None:
    # A key may consist of any bytes, and some lists have control characters in their names: only surrogates cannot be
    # sent.
    valid = isinstance(value, str) and 0 < len(value.encode(errors="surrogatepass")) <= MAX_DESTINATION
    if not valid or value.encode(errors="replace").decode() != value:
        raise InvalidValueError(
            f"destination={value!r}: must be the name of a Redis list, up to {MAX_DESTINATION} bytes"
        )


class MarkedEntries:
    """Operations on entries of one DelayQueue whose marks tell several calls with one id apart: ``queue.marked``."""

    def __init__(self, shards: Shards, writer: EntryWriter) -> None:
        self._shards = shards
        self._writer = writer

    def keep_many(self, items: Iterable[Push]) -> list[bool]:
        """Store entries as :meth:`DelayQueue.push_many` does with "keep"; return for each whether it was stored."""
        return [flag != PushFlag.KEPT for _, flag in self._writer.push(items, "keep")]

    def renew_many(self, items: Iterable[Push]) -> list[int]:
        """Store entries as :meth:`DelayQueue.push_many` does with "replace"; return the :class:`PushFlag` of each."""
        return [flag for _, flag in self._writer.push(items, "replace")]

    def replace_own(self, item: Push) -> bool:
        """Store *item* unless a record without its mark has its id; return whether it was stored.

        It is stored even if Redis is full: the message of the task that retries is settled next.
        """
        return next(flag != PushFlag.KEPT for _, flag in self._writer.push([item], "own"))

    def replace_older(self, item: Push, *, age: Seconds) -> bool:
        """Store *item*; return whether it was stored.

        A record under its id is kept if it contains its mark, or was stored less than *age* ago by the Redis clock. An
        older record is replaced, whether waiting, in flight or dead.
        """
        return next(flag != PushFlag.KEPT for _, flag in self._writer.push([item], duration_ms(age, name="age")))

    def cancel(self, items: Iterable[tuple[str, Verb]], *, held: str = "", size: int = CHUNK) -> list[Cancelled]:
        """Cancel entries, each an id and a :data:`Verb`, as :meth:`DelayQueue.cancel_many` does.

        Entries stay whose records contain *held*, up to 128 bytes; with "" none do, and none is read. It takes one call
        for each shard and every *size* ids, or 1 MiB.
        """

        def cancel(shard: Records, more: list[Any]) -> list[Cancelled]:
            reply: bytes = shard.call("delay/cancel", now=shard.clock(), age=REMEMBERED, held=held, more=more)
            found: list[Cancelled] = []
            at = 0
            while at < len(reply):
                flag, start = reply[at], reply.index(b" ", at) + 1
                size, due = map(int, reply[at + 1 : start - 1].split(b":"))
                at = start + size
                entry = read_entry(shard, (more[2 * len(found)], 0, due, reply[start:at]), None) if size else None
                found.append(Cancelled(OUTCOMES.get(flag), entry, is_dead=flag == ord("4")))
            return found

        return self._shards.ask(items, cancel, size)

    def cancel_unique(
        self, items: Iterable[tuple[str, str, str, str]], keys: FlowKeys, *, until_ms: int = 0
    ) -> list[CancelOutcome | None]:
        """Cancel entries as :meth:`DelayQueue.cancel_many` does, and free the keys of unique tasks in the same step.

        Each item is an id, a mark, and the field and the token of its key, or two "". None: its record, which stays,
        lacks the mark; any record has the mark "". With *until_ms* only dead letters that died by then are
        removed. The store must not be a Redis Cluster.
        """
        others = {"owners": keys.owners, "owner_ends": keys.owner_ends, "replaced": keys.replaced}

        def remove(shard: Records, more: list[Any]) -> list[CancelOutcome | None]:
            flags = shard.call("admission/cancel", others=others, now=shard.clock(), latest=until_ms, more=more)
            return [OUTCOMES.get(flag) for flag in flags]

        return self._shards.ask(items, remove, MAX_UNIQUE_PER_CALL)


class Revokes:
    """The revoked ids of one DelayQueue: ``queue.revokes``."""

    def __init__(self, shards: Shards, marked: MarkedEntries) -> None:
        self._shards = shards
        self._marked = marked

    def note_revoked(self, ids: Iterable[str]) -> None:
        """Record that the tasks *ids* are revoked now; entries that are stored later with a mark count as newer."""
        self._marked.cancel((id_, "revoked") for id_ in ids)

    def note_sent(self, ids: Iterable[str]) -> None:
        """Record that workers discard the messages of the revoked tasks *ids*."""
        self._marked.cancel((id_, "discarded") for id_ in ids)

    def revoked_ids(self) -> Iterator[str]:
        """Yield the ids of revoked tasks whose messages workers discard, of each shard newest first."""
        for shard in self._shards.in_turn():
            # Newest first: ids that are added or removed meanwhile push none out of sight.
            for first in range(0, MAX_REVOKED, PAGE):
                page = self._shards.scripts.command("ZRANGE", shard.keys.discarded, first, first + PAGE - 1, "REV")
                yield from filter(is_id, map(id_text, page))
                if len(page) < PAGE:
                    break

    def is_renewed(self, id: str, mark: str) -> bool:
        """Return whether an entry with *mark* was stored after its *id* was revoked; False if no revoke was noted."""
        key, member = self._shards.of(check_id(id)).keys.revoked, id_bytes(id)
        stored = self._shards.scripts.command("ZSCORE", key, member + b"\n" + mark.encode())
        if stored is None:
            return False
        revoked = self._shards.scripts.command("ZSCORE", key, member)
        return revoked is not None and float(stored) >= float(revoked)
