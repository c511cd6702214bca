"""Step of a worker's consumer: note how runs end, and report them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from celery import bootsteps

from redis_queue.celery.monitor.activity import Activity, OnFailure
from redis_queue.celery.monitor.commands import register
from redis_queue.celery.monitor.discards import note_discards
from redis_queue.celery.monitor.failure_log import FailureLog
from redis_queue.celery.monitor.failure_writer import FailureWriter
from redis_queue.celery.monitor.reporter import Reporter
from redis_queue.celery.monitor.requests import note_arrivals, noted_requests
from redis_queue.celery.monitor.snapshot import Snapshots
from redis_queue.celery.queues.names import QueueNames
from redis_queue.celery.store import Store

TURN: Final = 1.0
"""Seconds between two marks of the event loop."""


class MonitorStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Runs a Reporter beside the consumer, unless the app sets ``redis_queue_monitor=False``."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.enabled = Store.of(consumer.app).settings.monitor
        self._reporter: Reporter | None = None
        self._turns: Any = None
        if self.enabled:
            self._prepare(consumer)

    def _prepare(self, consumer: Any) -> None:
        register()
        queue_of, limits = QueueNames(consumer.app).of, Store.of(consumer.app).settings.failures_kept
        self._failures: FailureWriter | None = None
        on_failure: OnFailure = _ignore
        if limits is not None:
            log = FailureLog(consumer.hostname, queue_of)
            note_discards(consumer, log)
            on_failure, self._failures = log.note, FailureWriter(log, limits)
        self._activity = Activity(consumer.hostname, queue_of, on_failure)
        self._snapshots = Snapshots(consumer, self._activity)
        update = consumer.update_strategies

        def update_strategies() -> None:
            with noted_requests(consumer.app.tasks.values(), self._activity):
                update()

        consumer.update_strategies = update_strategies

    def start(self, consumer: Any) -> None:
        """Start the thread; after a lost connection, it still runs."""
        if consumer.hub is not None:
            self._turn()
            self._turns = consumer.timer.call_repeatedly(TURN, self._turn)
        if self._reporter is None:
            self._snapshots.connect()
            self._reporter = Reporter(consumer.app, self._activity, self._snapshots, self._failures)
            self._reporter.start()

    def intake(self, handle: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return *handle*, with each message noted, and without the header with the time of sending."""
        return note_arrivals(handle)

    def stop(self, consumer: Any) -> None:  # noqa: ARG002 - what Celery calls
        """Do not watch the event loop while the worker connects again or shuts down."""
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.cancel()
            self._snapshots.loop_at = None

    def shutdown(self, consumer: Any) -> None:  # noqa: ARG002 - what Celery calls
        """Write the last report, after all tasks have ended."""
        reporter, self._reporter = self._reporter, None
        if reporter is not None:
            reporter.stop()

    def _turn(self) -> None:
        self._snapshots.loop_at = time.monotonic()


def _ignore(request: Any, exc_info: Any, seconds: float | None) -> None:
    """Keep no failures."""
