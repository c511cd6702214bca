"""CeleryQueues: counts of the queues that an app uses at its broker. It changes nothing."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from kombu.exceptions import OperationalError

from redis_queue.basics.options import did_you_mean
from redis_queue.celery.queues.depth import BrokerQueues, Depth
from redis_queue.celery.queues.names import known_queues, readable
from redis_queue.celery.queues.open import broker_queues
from redis_queue.errors import InvalidNameError, StoreError
from redis_queue.monitor.model import Series, Tally, WorkerRow
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.queue_row import BROKEN, CeleryOverview, CeleryQueueRow
from redis_queue.store.keys import check_name
from redis_queue.store.redis_errors import redact

MAX_CELERY_QUEUES: Final = 10_000
"""Maximum number of queues of an app that are known."""

REMEMBERED_SECONDS: Final = 10.0
"""How long the names of queues are remembered: to find them takes longer than to count them."""

RATE_MINUTES: Final = 5

NO_REPORTS: Final = "the reports of workers cannot be read: redis-queue doctor"

MIN_SECONDS: Final = 5.0
"""Minimum time between two looks at a queue that tell how much it grew."""

MAX_SECONDS: Final = 60.0
"""Age after which a look is replaced by a newer one."""


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

    def overview(self, part: str = "", *, offset: int = 0, limit: int = MAX_CELERY_QUEUES) -> CeleryOverview:
        """Return the rows of up to *limit* queues whose names contain *part*, by name from position *offset* on.

        The cost does not grow with the number of messages. If the broker cannot be read, each row has an error.
        Raises StoreError if the store cannot be read.
        """
        workers, at = self._reports(), self._inspector.now()
        try:
            with broker_queues(self._app) as broker:
                names = self._names(workers, broker)
                ready, in_flight = broker.total(names)
                chosen = [name for name in names if part in name]
                depths = broker.depths(chosen[offset : offset + limit])
            error = NO_REPORTS if workers is None else ""
        except (OperationalError, StoreError) as failure:
            error = _away(failure)
            names, ready, in_flight = self._names(workers), None, None
            chosen = [name for name in names if part in name]
            depths = [Depth(error=error) for _ in chosen[offset : offset + limit]]
        end = offset + len(depths)
        rows = self._rows(chosen[offset:end], depths, workers, at)
        return CeleryOverview(
            at,
            rows,
            len(chosen),
            end if end < len(chosen) else None,
            ready,
            in_flight,
            error,
        )

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
        return self._rows([name], depths, workers, at)[0]

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
        return self._rows(names, depths, workers, at)

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
        if broker is not None and time.monotonic() >= self._bound_until:
            self._bound = set(readable(broker.bound(known | self._bound)))
            self._bound_until = time.monotonic() + REMEMBERED_SECONDS
        consumed = readable(queue for row in workers or () for queue in row.queues)
        return sorted({*known, *consumed, *self._bound})[:MAX_CELERY_QUEUES]

    def _rows(
        self, names: Sequence[str], depths: Sequence[Depth], reports: Sequence[WorkerRow] | None, at: datetime
    ) -> list[CeleryQueueRow]:
        workers = reports or ()
        consumers = Counter(queue for row in workers for queue in dict.fromkeys(row.queues))
        held, executed = Counter[str](), Counter[str]()
        for worker in workers:
            held.update(worker.held or {})
        for series, tally in self._lately().items():
            executed[series.queue] += tally.executed
        found = []
        for name, depth in zip(names, depths, strict=True):
            in_flight = held.get(name, 0) if depth.in_flight is None and consumers[name] else depth.in_flight
            rate = executed[name] / RATE_MINUTES if workers else None
            row = CeleryQueueRow(
                name,
                ready=depth.ready,
                in_flight=in_flight,
                consumers=consumers[name] if depth.consumers is None and reports is not None else depth.consumers,
                oldest_age=None if depth.oldest_at is None else max(0.0, at.timestamp() - depth.oldest_at),
                executed_per_minute=rate,
                put_per_minute=None if depth.put_rate is None else depth.put_rate * 60,
                error=depth.error,
                waiting_for_place=depth.waiting_for_place,
            )
            found.append(row if row.put_per_minute is not None else self._with_growth(row, at.timestamp()))
        return found

    def _with_growth(self, row: CeleryQueueRow, now: float) -> CeleryQueueRow:
        """Return *row* with the messages put since an earlier look at its queue."""
        if row.ready is None:
            return row
        size = row.ready + (row.in_flight or 0)
        then, before = self._looks.get(row.name, (now, size))
        seconds = now - then
        if row.name not in self._looks or not 0 <= seconds <= MAX_SECONDS:
            if len(self._looks) >= MAX_CELERY_QUEUES:
                self._looks.clear()
            self._looks[row.name] = now, size
        if row.executed_per_minute is None or not MIN_SECONDS <= seconds <= 2 * MAX_SECONDS:
            return row
        return replace(row, put_per_minute=max(0.0, row.executed_per_minute + (size - before) / seconds * 60))


def _check_known(name: str, names: Sequence[str], depth: Depth) -> None:
    """Raise InvalidNameError if a queue is not one of *names* and has no messages."""
    if name not in names and not depth.ready:
        raise InvalidNameError(f"queue={name!r}: no such Celery queue; {did_you_mean(name, names)}")


def _away(failure: Exception) -> str:
    return f"the broker cannot be read: {redact(str(failure))}"
