"""Step of a worker's consumer: note how runs end, and let a thread report them each second."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from celery import Celery, bootsteps

from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import END_OF_CALENDAR_MS, monotonic
from redis_queue.basics.waits import Backoff
from redis_queue.celery.kombu.internals import around
from redis_queue.celery.message.headers import SENT
from redis_queue.celery.monitor.activity import FETCHED, Activity
from redis_queue.celery.monitor.commands import register
from redis_queue.celery.monitor.failure_log import FailureLog
from redis_queue.celery.monitor.requests import noted_requests
from redis_queue.celery.monitor.snapshot import Snapshots, release_of
from redis_queue.celery.queues.names import QueueNames
from redis_queue.celery.store import Store
from redis_queue.errors import StoreUnavailableError
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import FailureKind
from redis_queue.monitor.report import Reports
from redis_queue.schedules.state import Event
from redis_queue.schedules.store import MAX_CHANGES, ScheduleStore

logger = logger_of(__name__)

INTERVAL: Final = 1.0
"""Seconds between two reports."""

REPORT_TIMEOUT: Final = 2.0
"""Seconds to wait for Redis."""

STOP_WITHIN: Final = 1.0
"""Seconds that a shutdown waits for the last report."""

TURN: Final = 1.0
"""Seconds between two marks of the event loop."""


class Reporter:
    """Writes what *activity* and *snapshots* tell about a worker of *app*, and its *failures*, until :meth:`stop`.

    It never raises. While Redis is away, counts are added up in memory, and written later. If one part of a report
    cannot be written, the others are.
    """

    def __init__(self, app: Celery, activity: Activity, snapshots: Snapshots, failures: FailureLog) -> None:
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
                    store = Store.of(self._app).within(REPORT_TIMEOUT)
                    failures = Failures(store.client, store.prefix)
                    reports = Reports(store.client, store.prefix)
                self._write(reports, failures, leaving=left)
                backoff.reset()
                pause, self._failing = INTERVAL, False
            except Exception as error:  # noqa: BLE001 - no error may end the reports of this worker
                if not self._failing:
                    logger.warning("cannot write reports: %s", error, extra={"action": "monitor_away"})
                pause, self._failing = backoff.next(), True
            if left:
                break

    def _write(self, reports: Reports, failures: Failures, *, leaving: bool) -> None:
        first: Exception | None = None
        writes: tuple[Callable[[], None], ...] = (
            partial(self._write_counts, reports),
            partial(self._write_state, reports, leaving=leaving),
            lambda: self._failures.write(failures, self._skew),
            self._write_schedule_ends,
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

    def _write_schedule_ends(self) -> None:
        ends = self._activity.schedule_ends
        while ends:
            some = list(itertools.islice(ends, MAX_CHANGES))
            self._schedules.settle(
                [
                    (name, Event("ended", round((at + self._skew) * 1000), id_, text=text))
                    for name, id_, text, at in some
                ]
            )
            for _ in some:
                ends.popleft()

    @LazyProperty
    def _schedules(self) -> ScheduleStore:
        return ScheduleStore(Store.of(self._app).within(REPORT_TIMEOUT).delay_queue())

    def _write_state(self, reports: Reports, *, leaving: bool) -> None:
        skew, sample = self._skew, self._activity.sample
        worker, running = self._snapshots.worker(skew), self._snapshots.running(skew)
        ended = sample.take(skew)
        began = time.time()
        now = reports.write(worker, running, ended=ended, leaving=leaving)
        sample.written()
        self._skew = now / 1000 - (began + time.time()) / 2


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
        queue_of = QueueNames(consumer.app).of
        settings = Store.of(consumer.app).settings
        release = release_of(settings.release)
        kept, arguments = settings.failures_kept, settings.keep_arguments
        self._failures = FailureLog(consumer.hostname, queue_of, kept, release, arguments=arguments)
        self._activity = Activity(
            consumer.hostname, queue_of, self._failures.note, release, arguments=arguments and kept is not None
        )
        _note_discards(consumer, self._failures, self._activity)
        consumer.redis_queue_activity = self._activity
        self._snapshots = Snapshots(consumer, self._activity, arguments=arguments)
        around(consumer, "update_strategies", partial(self._update_strategies, consumer.app))

    def _update_strategies(self, app: Celery, update: Callable[[], None]) -> None:
        with noted_requests(app.tasks.values(), self._activity):
            update()

    def start(self, consumer: Any) -> None:
        """Start the thread; after a lost connection, it still runs."""
        if consumer.hub is not None:
            self._turn()
            self._turns = consumer.timer.call_repeatedly(TURN, self._turn)
        if self._reporter is None:
            self._snapshots.connect()
            self._reporter = Reporter(consumer.app, self._activity, self._snapshots, self._failures)
            self._reporter.start()

    @staticmethod
    def intake(handle: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return *handle*, which notes when each message arrived, and when it was sent, in attributes of it.

        The header with the time of sending is removed: the task must not see it, nor pass it on to its retries.
        """

        def on_message(message: Any) -> Any:
            setattr(message, FETCHED, time.time())
            headers = message.headers
            if isinstance(headers, dict) and SENT in headers:
                sent = headers.pop(SENT)
                if isinstance(sent, int) and 0 < sent < END_OF_CALENDAR_MS:
                    setattr(message, SENT, sent)
            return handle(message)

        return on_message

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
        self._snapshots.loop_at = monotonic()


def _note_discards(consumer: Any, log: FailureLog, activity: Activity) -> None:
    """Note each message that *consumer* discards, before it is settled: the run of a schedule ends with it."""

    def note(kind: FailureKind, message: Any, reason: BaseException | str) -> None:
        log.note_message(kind, message, reason)
        activity.discarded(message)

    def on_bad_task(kind: FailureKind, discard: Callable[..., Any], body: Any, message: Any, exc: BaseException) -> Any:
        note(kind, message, exc)
        return discard(body, message, exc)

    def on_unknown_message(discard: Callable[..., Any], body: Any, message: Any) -> Any:
        note("unreadable", message, "neither the headers nor the body name a task")
        return discard(body, message)

    def on_decode_error(discard: Callable[..., Any], message: Any, exc: BaseException) -> Any:
        note("unreadable", message, exc)
        return discard(message, exc)

    around(consumer, "on_unknown_task", partial(on_bad_task, "unregistered"))
    around(consumer, "on_invalid_task", partial(on_bad_task, "unreadable"))
    around(consumer, "on_unknown_message", on_unknown_message)
    around(consumer, "on_decode_error", on_decode_error)
