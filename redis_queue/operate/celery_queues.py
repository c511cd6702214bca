"""CeleryQueues: counts of the queues that an app uses at its broker. It changes nothing."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from kombu.exceptions import OperationalError

from redis_queue.basics.logs import hide_secrets
from redis_queue.basics.options import did_you_mean
from redis_queue.basics.times import monotonic
from redis_queue.celery.queues.depth import BrokerQueues, Depth
from redis_queue.celery.queues.names import known_queues, readable
from redis_queue.celery.queues.open import broker_queues
from redis_queue.errors import InvalidNameError, StoreError
from redis_queue.monitor.model import Series, Tally, WorkerRow
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.liveness import WorkerState
from redis_queue.operate.queue_row import BROKEN, SORTS, CeleryOverview, CeleryQueueRow, sort_rows
from redis_queue.store.keys import check_name

MAX_CELERY_QUEUES: Final = 10_000
"""Maximum number of queues of an app that are known."""

REMEMBERED_SECONDS: Final = 10.0
"""How long the names of queues are remembered: to find them takes longer than to count them."""

MAX_SORTED: Final = 200
"""Maximum number of queues with messages that are counted to find the first ones in an order."""

RATE_MINUTES: Final = 5

NO_REPORTS: Final = "the reports of workers cannot be read: redis-queue doctor"

MIN_SECONDS: Final = 5.0
"""Minimum time between two looks at a queue that tell how much it grew."""

MAX_SECONDS: Final = 60.0
"""Age after which a look is replaced by a newer one."""


@dataclass(frozen=True, slots=True)
class _Reported:
    """What workers reported of each queue by the time *at*; *workers* is None if that cannot be read."""

    at: datetime
    workers: Sequence[WorkerRow] | None
    consumers: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    executed: Counter[str] = field(default_factory=Counter)

    def row(self, name: str, depth: Depth) -> CeleryQueueRow:
        """Return the row of a queue with this depth at the broker."""
        consumers = self.consumers[name]
        return CeleryQueueRow(
            name,
            ready=depth.ready,
            in_flight=self.held[name] if depth.in_flight is None and consumers else depth.in_flight,
            consumers=consumers if depth.consumers is None and self.workers is not None else depth.consumers,
            oldest_age=None if depth.oldest_at is None else max(0.0, self.at.timestamp() - depth.oldest_at),
            executed_per_minute=self.executed[name] / RATE_MINUTES if self.workers else None,
            put_per_minute=None if depth.put_rate is None else depth.put_rate * 60,
            error=depth.error,
            waiting_for_place=depth.waiting_for_place,
        )


class CeleryQueues:
    """The queues of *app*: configured ones, those of its tasks, those that workers consume or that kombu has bound."""

    def __init__(self, app: Any, inspector: Inspector) -> None:
        self._app = app
        self._inspector = inspector
        self._monitor = inspector.monitor
        self._known: set[str] | None = None
        self._bound: set[str] = set()
        self._bound_until = 0.0
        self._looks: dict[str, tuple[float, int]] = {}

    def overview(
        self,
        part: str = "",
        *,
        offset: int = 0,
        limit: int = MAX_CELERY_QUEUES,
        order: str = "name",
        states: Sequence[WorkerState] = (),
    ) -> CeleryOverview:
        """Return the rows of up to *limit* queues whose names contain *part*, from position *offset* on in *order*.

        The *order* is one of SORTS; only the lengths of lists are read of queues that are not shown, and more of up to
        :data:`MAX_SORTED` that have messages. The cost does not grow with the number of messages. If the broker cannot
        be read, each row has an error. *states* saves a read of the workers. Raises StoreError for the store's faults.
        """
        workers, at = [one.row for one in states if one.state != "lost"] or self._reports(), self._inspector.now()
        end, ready, in_flight = offset + limit, None, None
        error = NO_REPORTS if workers is None else ""
        try:
            with broker_queues(self._app) as broker:
                names = self._names(workers, broker)
                sizes, in_flight = broker.sizes(names)
                known = [size for size in sizes if size is not None]
                ready = sum(known) if known else None
                depths = {name: Depth(size) for name, size in zip(names, sizes, strict=True) if part in name}
                rows, counted = self._sorted(depths, order, slice(offset, end), broker, self._reported(workers, at))
        except (OperationalError, StoreError) as failure:
            error = _away(failure)
            depths = {name: Depth(error=error) for name in self._names(workers) if part in name}
            names = list(depths)[offset:end]
            rows = counted = self._rows(names, [depths[name] for name in names], self._reported(workers, at))
        return CeleryOverview(
            at, rows, len(depths), end if end < len(depths) else None, ready, in_flight, error, counted
        )

    def _sorted(
        self, sizes: Mapping[str, Depth], order: str, shown: slice, broker: BrokerQueues, reported: _Reported
    ) -> tuple[list[CeleryQueueRow], list[CeleryQueueRow]]:
        """Return the rows *shown* of all in *order*, and all rows that are counted.

        *sizes* are the depths of all, with no more than what waits.
        """
        rows = {name: reported.row(name, depth) for name, depth in sizes.items()}
        ranked = sort_rows(rows.values(), order)
        likely = ranked if order != "name" else sort_rows(ranked, SORTS[0])
        counted = [row for row in likely if row.ready != 0 or order == "in_flight"][:MAX_SORTED]
        read = set[str]()
        # What is read may put others into their places.
        for _ in range(2):
            names = [row.name for row in dict.fromkeys([*counted, *ranked[shown]]) if row.name not in read]
            if names:
                rows.update((row.name, row) for row in self._rows(names, broker.depths(names), reported))
                ranked, counted = sort_rows(rows.values(), order), []
                read.update(names)
        return ranked[shown], [row for row in ranked if row.name in read]

    def configured(self) -> Sequence[str]:
        """Return the names of the queues in the settings of the app and of its tasks; it reads nothing."""
        if self._known is None:
            self._known = known_queues(self._app)
        return sorted(self._known)

    def row(self, name: str) -> CeleryQueueRow:
        """Return the row of one queue, also of one that is not known. Raises InvalidNameError."""
        check_name(name)
        workers, at = self._reports(), self._inspector.now()
        try:
            with broker_queues(self._app) as broker:
                depths = broker.depths([name])
        except (OperationalError, StoreError) as failure:
            depths = [Depth(error=_away(failure))]
        return self._rows([name], depths, self._reported(workers, at))[0]

    def known_rows(self, names: Sequence[str]) -> list[CeleryQueueRow]:
        """Return the rows of known queues, by one connection to the broker.

        Raises InvalidNameError, with a suggestion, and StoreError if the broker cannot be read.
        """
        for name in names:
            check_name(name)
        workers, at = self._reports(), self._inspector.now()
        try:
            with broker_queues(self._app) as broker:
                known = self._names(workers)
                if not set(names) <= set(known):
                    known = self._names(workers, broker)
                depths = broker.depths(names)
        except OperationalError as failure:
            raise StoreError(_away(failure)) from failure
        for name, depth in zip(names, depths, strict=True):
            _check_known(name, known, depth)
        return self._rows(names, depths, self._reported(workers, at))

    def check(self, name: str) -> str:
        """Return *name* if it is a known queue. Raises InvalidNameError, with a suggestion, and OperationalError."""
        check_name(name)
        workers = self._reports()
        names = self._names(workers)
        if name not in names:
            with broker_queues(self._app) as broker:
                names = self._names(workers, broker)
                if name not in names:
                    _check_known(name, names, broker.depths([name])[0])
        return name

    def _reports(self) -> list[WorkerRow] | None:
        # Keys that another program has overwritten must not hide the queues.
        with contextlib.suppress(*BROKEN):
            return self._monitor.workers.rows()
        return None

    def _lately(self) -> Mapping[Series, Tally]:
        with contextlib.suppress(*BROKEN):
            return self._monitor.history.totals(RATE_MINUTES, times=False)
        return {}

    def _names(self, workers: Sequence[WorkerRow] | None, broker: BrokerQueues | None = None) -> list[str]:
        known = set(self.configured())
        if broker is not None and monotonic() >= self._bound_until:
            self._bound = set(readable(broker.bound(known | self._bound)))
            self._bound_until = monotonic() + REMEMBERED_SECONDS
        consumed = readable(queue for row in workers or () for queue in row.queues)
        return sorted({*known, *consumed, *self._bound})[:MAX_CELERY_QUEUES]

    def _reported(self, reports: Sequence[WorkerRow] | None, at: datetime) -> _Reported:
        found = _Reported(at, reports)
        for worker in reports or ():
            found.consumers.update(dict.fromkeys(worker.queues, 1))
            found.held.update(worker.held or {})
        for series, tally in self._lately().items():
            found.executed[series.queue] += tally.executed
        return found

    def _rows(self, names: Sequence[str], depths: Sequence[Depth], reported: _Reported) -> list[CeleryQueueRow]:
        rows = [reported.row(name, depth) for name, depth in zip(names, depths, strict=True)]
        now = reported.at.timestamp()
        return [self._with_growth(row, now) for row in rows]

    def _with_growth(self, row: CeleryQueueRow, now: float) -> CeleryQueueRow:
        """Return *row* with its growth since an earlier look at its queue, and the messages that were put."""
        if row.ready is None:
            return row
        size = row.ready + (row.in_flight or 0)
        then, before = self._looks.get(row.name, (now, size))
        seconds = now - then
        if row.name not in self._looks or not 0 <= seconds <= MAX_SECONDS:
            if len(self._looks) >= MAX_CELERY_QUEUES:
                self._looks.clear()
            self._looks[row.name] = now, size
        if not MIN_SECONDS <= seconds <= 2 * MAX_SECONDS:
            return row
        growth, put = (size - before) / seconds * 60, row.put_per_minute
        if put is None and row.executed_per_minute is not None:
            put = max(0.0, row.executed_per_minute + growth)
        return replace(row, put_per_minute=put, growth_per_minute=growth)


def _check_known(name: str, names: Sequence[str], depth: Depth) -> None:
    """Raise InvalidNameError if a queue is not one of *names* and has no messages."""
    if name not in names and not depth.ready:
        raise InvalidNameError(f"queue={name!r}: no such Celery queue; {did_you_mean(name, names)}")


def _away(failure: Exception) -> str:
    return f"the broker cannot be read: {hide_secrets(str(failure))}"
