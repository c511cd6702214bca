"""DelayQueue: a durable set of entries that become due at a given time."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, get_args

from redis_queue.basics.times import END_OF_CALENDAR_MS, MAX_DELAY_MS, Seconds, duration_ms, from_ms, point_ms
from redis_queue.delay.dispatch_log import DispatchLog
from redis_queue.delay.entries import EntryReader, EntryWriter, HasDueTime, MarkedEntries, Revokes, format_cursor, when
from redis_queue.delay.model import Push, sum_stats
from redis_queue.delay.moves import Foreign, Moves
from redis_queue.errors import InvalidDelayError, InvalidValueError
from redis_queue.model import CancelOutcome, DelayStats, Entry, OnConflict, Unread
from redis_queue.store.base_queue import BaseQueue
from redis_queue.store.chunks import CHUNK, MANY, check_limit
from redis_queue.store.ids import check_id, id_bytes
from redis_queue.store.records import Records

DelayPlace = Literal["waiting", "dead", "quarantine"]

SCAN_BYTES: Final = 2 * 1024 * 1024
"""Maximum bytes of records that a scan reads at once."""


class DelayQueue(BaseQueue[Entry]):
    """Entries that wait until they are due: push with a delay, list, reschedule, cancel, and claim when due.

    States: ``waiting -> in flight -> done``, ``waiting -> moved | cancelled``, ``in flight -> waiting | dead``; *moved*
    means that :meth:`move_due` pushed the entry into a list. An entry is due when the clock of the Redis server reaches
    its due time, never before. Safe for threads and after fork.

    *redis* is a URL or a redis-py client. Pass single settings by keyword, or all as *settings*
    (:class:`redis_queue.store.settings.Settings`). With ``shards=N`` the entries are spread by id over N hash tags, for
    Redis Cluster.

    Attributes for integrations: *moves* has the operations of dispatchers, *dispatch_log* their counts, *foreign*
    the operations on messages that this queue did not write, *marked* those on several calls with one id, *revokes*
    the revoked ids; *reader* finds entries by id; *shards* are its hash tags. In the signatures, *Held* is an
    :class:`Entry`.
    """

    _kind = "delay"
    _writer_class: type[EntryWriter] = EntryWriter

    def _add_parts(self) -> None:
        self.shards = self._shards
        self.reader = EntryReader(self._shards)
        self._writer = self._writer_class(self._shards)
        self.moves = Moves(self._shards)
        self.dispatch_log = DispatchLog(self._shards.scripts, self._shards[0])
        self.foreign = Foreign(self._shards, self._writer)
        self.marked = MarkedEntries(self._shards, self._writer)
        self.revokes = Revokes(self._shards, self.marked)

    def __repr__(self) -> str:
        return f"DelayQueue({self.name!r}, prefix={self.settings.prefix!r}, shards={self.settings.shards})"

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

        Without either it is due now. If the *id* exists, *on_conflict* decides: "replace" replaces the entry (a
        debounce; a holder of the old entry loses its lease), "keep" changes nothing, "error" raises EntryExistsError.
        *destination* names a list for :meth:`move_due`. Raises ConfigurationError if *shards* is not the number of
        shards that the queue has.
        """
        item = Push(payload, delay=delay, due_at=due_at, id=id, headers=headers, destination=destination)
        return self.push_many([item], on_conflict=on_conflict)[0]

    def push_many(self, items: Iterable[Push | Any], *, on_conflict: OnConflict = "replace") -> builtins.list[str]:
        """Store many entries (:class:`Push`, or a bare payload that is due now); return their ids in order.

        A round trip carries up to 500 entries or 1 MiB of records, all for one shard, and stores all of its entries or
        none. If one fails (EntryExistsError, StoreUnavailableError), the entries of earlier ones stay stored. To
        complete the push, call it again with the same ids and "replace" or "keep".
        """
        if on_conflict not in get_args(OnConflict):
            raise InvalidValueError(f"on_conflict={on_conflict!r}: must be one of {', '.join(get_args(OnConflict))}")
        return [id_ for id_, _ in self._writer.push(items, on_conflict)]

    def check(self, item: Push) -> None:
        """Raise the error that :meth:`push_many` would raise for *item*; nothing is sent to Redis."""
        self._writer.row(item, iter([""]))

    def get(self, id: str) -> Entry | None:
        """Return a waiting entry, or one in flight (its *due_at* is the end of its lease), or None."""
        entry, is_dead = self.reader.find([check_id(id)]).get(id, (None, False))
        return None if is_dead else entry

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

        *due_after* is inclusive, *due_before* is not. *after* is :meth:`cursor` of the last entry seen: the next page
        begins after it, even if entries were added or removed meanwhile. Left out are entries that cannot be read (up
        to 500 are skipped per round trip, and they do not end a page), and entries whose due time is after the year
        9999. A round trip reads about 1 MiB from each shard, so that large entries do not block Redis for long.
        *max_bytes* limits what is read, in equal parts for the shards: the payload of an entry that does not fit is an
        :class:`Unread`.
        """
        low = point_ms(due_after, name="due_after") if due_after is not None else "-inf"
        high = point_ms(due_before, name="due_before") if due_before is not None else END_OF_CALENDAR_MS
        return self.reader.page(low, high, check_limit(limit, CHUNK), after, max_bytes)

    @staticmethod
    def cursor(entry: HasDueTime) -> str:
        """Return the cursor that continues after *entry*: *after* of :meth:`list` and :meth:`scan`."""
        return format_cursor(entry)

    def scan(
        self, *, after: str | None = None, due_before: datetime | None = None, due_after: datetime | None = None
    ) -> Iterator[Entry]:
        """Yield all waiting entries that :meth:`list` would return; read up to 500, or about 2 MiB, at a time."""
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

    def next_due(self) -> datetime | None:
        """Return when the next waiting entry is due, or None if none waits."""
        return self.stats().next_due

    def forecast(self, buckets: int = 60, *, width: Seconds = 60) -> builtins.list[tuple[datetime, int]]:
        """Count the entries that fall due in each of *buckets* (1 to 500) windows of *width*, beginning now.

        Each item is (start of the window, count). Overdue entries are counted in the first window.
        """
        check_limit(buckets, CHUNK, name="buckets")
        step = duration_ms(width, name="width")
        if not step or step * buckets > MAX_DELAY_MS:
            raise InvalidDelayError(f"width={width!r}: must be > 0, and all windows must end within ten years")
        edges = ["-inf", *(step * number for number in range(1, buckets + 1))]
        rows = [shard.run("delay/count", now=shard.clock(), relative=1, more=edges) for shard in self._shards]
        start = rows[0][0]
        counts = (sum(column) for column in zip(*(row[1:] for row in rows), strict=True))
        return [(from_ms(start + step * number), count) for number, count in enumerate(counts)]

    def stats(self) -> DelayStats:
        """Return all counts; those of one shard are read at one moment."""
        return sum_stats([shard.run("delay/stats", now=shard.clock()) for shard in self._shards])

    def claim(self, limit: int = 1, *, older_than: Seconds = 0, within: Seconds = 0) -> builtins.list[Entry]:
        """Take up to *limit* (1 to 500) due entries under a lease; :meth:`ack` or :meth:`nack` them.

        *older_than*: only entries that have been due for at least this time. *within*: only entries that have been due
        for at most this time (0: no limit). An entry that is not acked is due again after its lease has ended and
        :meth:`put_back` has run. One round trip to each shard reads about 1 MiB: it may return fewer than *limit*
        entries even if more are due. A broken shard does not block the others; its error is raised if nothing was
        claimed, else logged.
        """
        return self.moves.claim_batch(limit, older_than=older_than, within=within).entries

    def pop(self, limit: int = 1, *, older_than: Seconds = 0) -> builtins.list[Entry]:
        """Claim up to *limit* due entries and ack them at once.

        Entries are delivered at most once after the ack: they are lost if the caller crashes before the work is done,
        or if all replies to the ack are lost (StoreUnavailableError). Entries that were claimed and not acked are due
        again after :meth:`put_back`. For delivery at least once, call :meth:`claim`, do the work, then :meth:`ack`.
        """
        entries = self.claim(limit, older_than=older_than)
        kept, errors = self._shards.try_settle(entries, Records.ack)
        popped = [entry for entry, mine in zip(entries, kept, strict=True) if mine]
        # Acked entries are no longer stored: an error must not hide them.
        self._shards.report("ack in", errors, done=bool(popped))
        return popped

    def move_due(self, limit: int = MANY, *, lists: Sequence[str] | None = None) -> int:
        """Move up to *limit* due entries into the Redis lists that are their destinations; return how many.

        Each entry moves in one atomic step; its payload is pushed as its stored bytes, at the left end. *lists*: move
        only into these lists (at most 2,000). Without *lists*, the clients that push entries choose freely: with the
        permissions of this caller, they can write into any list. An entry stays due, for :meth:`claim`, if it has no
        destination, or one that is not in *lists* or is a key of another type. If Redis is full, a
        list of 500 messages gets no more, and the others stay due. The lists must be in the same Redis: raises
        ConfigurationError on Cluster, InvalidValueError for more than 2,000 lists.
        """
        return self.moves.move(limit, lists=lists).sent

    def cancel(self, id: str) -> CancelOutcome:
        """Cancel an entry, or delete a dead letter. Only CANCELLED is truthy: the entry will never run."""
        return self.cancel_many([id])[0]

    def cancel_many(self, ids: Iterable[str]) -> builtins.list[CancelOutcome]:
        """Cancel entries, as :meth:`cancel` does; one round trip per 500 and shard."""
        found = self.marked.cancel((id_, "remove") for id_ in ids)
        return [row.outcome for row in found if row.outcome is not None]

    def reschedule(self, id: str, *, delay: Seconds | None = None, due_at: datetime | None = None) -> bool:
        """Change the due time of a waiting entry. False: the id is unknown, or the entry is claimed."""
        return self._reschedule(id, *when(delay, due_at))

    def run_now(self, id: str) -> bool:
        """Make a waiting entry due now. False: the id is unknown, or the entry is claimed."""
        return self._reschedule(id, 0, 0)

    def _reschedule(self, id: str, delay: int, due: int) -> bool:
        shard = self._shards.of(check_id(id))
        return bool(shard.call("delay/reschedule", now=shard.clock(), id=id_bytes(id), delay=delay, due=due))

    def purge(self, *places: DelayPlace, limit: int = MANY) -> int:
        """Delete up to *limit* entries in *places* (default: waiting); return how many were deleted.

        The quarantine is always deleted entirely.
        """
        return self._purge(places or ("waiting",), get_args(DelayPlace), limit)
