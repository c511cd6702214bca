"""Reporter: a thread that writes the report of a worker each second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from redis_queue.basics.logs import logger_of
from redis_queue.basics.waits import Backoff
from redis_queue.celery.monitor.activity import Activity
from redis_queue.celery.monitor.failure_writer import FailureWriter
from redis_queue.celery.monitor.snapshot import Snapshots
from redis_queue.celery.store import Store
from redis_queue.errors import StoreUnavailableError
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.report import Reports

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

INTERVAL: Final = 1.0
"""Seconds between two reports."""

PATIENCE: Final = 2.0
"""Seconds to wait for Redis."""

STOP_WITHIN: Final = 1.0
"""Seconds that a shutdown waits for the last report."""


class Reporter:
    """Writes what *activity* and *snapshots* tell about a worker of *app*, and its *failures*, until :meth:`stop`.

    It never raises. While Redis is away, counts are added up in memory, and written later. If one part of a report
    cannot be written, the others are.
    """

    def __init__(
        self, app: Celery, activity: Activity, snapshots: Snapshots, failures: FailureWriter | None = None
    ) -> None:
        self._app = app
        self._failures = failures
        self._activity = activity
        self._snapshots = snapshots
        self._stopped = threading.Event()
        self._failing = False
        self._skew = 0.0
        # Calls that add counts. If a reply was lost, the counts may be stored: the same call is made again.
        self._counts: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="redis-queue-monitor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write a last report, and end the thread; if Redis does not answer within a second, leave it alone."""
        self._stopped.set()
        self._thread.join(STOP_WITHIN)

    def _run(self) -> None:
        reports: Reports | None = None
        failures: Failures | None = None
        backoff, pause = Backoff(first=INTERVAL), 0.0
        while not self._stopped.wait(pause) or reports is not None:
            left = self._stopped.is_set()
            try:
                if reports is None or failures is None:
                    store = Store.of(self._app).within(PATIENCE)
                    failures = Failures(store.client, store.prefix)
                    reports = Reports(store.client, store.prefix)
                self._write(reports, failures, left=left)
                backoff.reset()
                pause, self._failing = INTERVAL, False
            except Exception as error:  # noqa: BLE001 - no error may end the reports of this worker
                if not self._failing:
                    logger.warning("cannot write reports: %s", error, extra={"action": "monitor_away"})
                pause, self._failing = backoff.next(), True
            if left:
                break

    def _write(self, reports: Reports, failures: Failures, *, left: bool) -> None:
        first: Exception | None = None
        writes: tuple[Callable[[], None], ...] = (
            partial(self._write_counts, reports),
            partial(self._write_state, reports, left=left),
            partial(self._write_failures, failures),
        )
        for write in writes:
            try:
                write()
            except StoreUnavailableError:
                raise
            except Exception as error:  # noqa: BLE001 - a key that belongs to another program must not hide the worker
                first = first or error
        if first is not None:
            raise first

    def _write_counts(self, reports: Reports) -> None:
        if not self._counts:
            self._counts = reports.count_calls(self._activity.take())
        while self._counts:
            self._counts[0]()
            del self._counts[0]

    def _write_state(self, reports: Reports, *, left: bool) -> None:
        skew, sample = self._skew, self._activity.sample
        worker, running = self._snapshots.worker(skew), self._snapshots.running(skew)
        ended = sample.take(skew)
        began = time.time()
        now = reports.write(worker, running, ended=ended, left=left)
        sample.written()
        self._skew = now / 1000 - (began + time.time()) / 2

    def _write_failures(self, failures: Failures) -> None:
        if self._failures is not None:
            self._failures.write(failures, self._skew)
