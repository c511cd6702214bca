"""Beat: periodic tasks that put back expired leases and dispatch due entries; waits for a broker that is away."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from celery import Celery, signals
from kombu.exceptions import OperationalError

from redis_queue.basics.logs import OutageLog, hide_secrets, logger_of
from redis_queue.basics.waits import Backoff
from redis_queue.catalog import put_back_each
from redis_queue.celery.dispatch.dispatcher import Dispatcher
from redis_queue.celery.dispatch.loop import ScheduleLoop
from redis_queue.celery.dispatch.outcome import DispatchReport
from redis_queue.celery.kombu.internals import BEAT, around, has
from redis_queue.celery.settings import extension_of, part_of
from redis_queue.celery.store import Store
from redis_queue.delay.model import Dispatched
from redis_queue.errors import RedisQueueError, StoreUnavailableError
from redis_queue.store.redis_errors import is_outage

logger = logger_of(__name__)

PUTBACK: Final = "tasks.putback.putback"
DELAY_DISPATCH: Final = "tasks.delay_dispatch.delay_dispatch"

PUTBACK_EVERY: Final = 300.0
DISPATCH_EVERY: Final = 1.0
DISPATCH_EXPIRES: Final = 5.0
"""Seconds after which a queued run of the task is dropped: a later run does its work."""


def put_back_all(app: Celery) -> dict[str, dict[str, int]]:
    """Put back expired leases of every queue in the registry; return the counts by queue.

    If one queue is broken, the others are still served, and its error is raised at the end.
    """
    catalog = Store.of(app).catalog
    done: dict[str, Counter[str]] = {}
    failed: RedisQueueError | None = None
    for served in put_back_each(catalog, catalog.known(), promote=True):
        if served.error is not None:
            extra = {"action": "putback_failed", "queue": served.name}
            logger.error("put-back of %s failed", served.name, exc_info=served.error, extra=extra)
            failed = served.error
            continue
        counts = done.setdefault(served.name, Counter(returned=0, dead=0, promoted=0))
        counts.update(returned=served.back.returned, dead=served.back.dead, promoted=served.promoted)
    if failed is not None:
        raise failed
    return {name: dict(counts) for name, counts in done.items()}


def dispatch_due(app: Celery) -> dict[str, int]:
    """Send due entries of the app's DelayQueue to its Celery queues; return how many were sent and how many failed.

    No-op while another call in this process is at work.
    """
    done = PeriodicDispatch.of(app).run()
    return {"sent": done.sent, "failed": done.failed}


class PeriodicDispatch:
    """The dispatcher of one process; it keeps its connections from run to run."""

    def __init__(self, app: Celery) -> None:
        self._lock = threading.Lock()
        self._queue = Store.of(app).delay_queue()
        self._spreads = Store.of(app).settings.overdue_policy.policy == "spread"
        self._dispatcher = Dispatcher(app, self._queue)
        self._schedules = ScheduleLoop(app, Store.of(app), declares=False)
        self._report = DispatchReport(self._queue, f"{socket.gethostname()}:{os.getpid()}:task")

    def run(self) -> Dispatched:
        """Dispatch due entries, unless another call is at work, or a leader has to keep a rate by itself."""
        if not self._lock.acquire(blocking=False):
            return Dispatched()
        try:
            self._schedules.run(woken=True, budget=DISPATCH_EVERY)
            done = Dispatched() if self._spreads and self._queue.moves.leader() else self._dispatcher.run()
            self._report.add(done)
            # The next run may go to another process.
            self._report.write(leads=False, at_once=True)
            return done
        finally:
            self._lock.release()

    @classmethod
    def of(cls, app: Celery) -> PeriodicDispatch:
        """Return that of *app* in this process, made at its first use."""
        return part_of(app, cls, f"periodic_dispatch_{os.getpid()}")


def register_putback(app: Celery) -> Any:
    """Return the task ``tasks.putback.putback`` of *app*; no-op if already registered."""
    return app.task(_putback, name=PUTBACK, bind=True, shared=False, ignore_result=True)


def register_delay_dispatch(app: Celery) -> Any:
    """Return the task ``tasks.delay_dispatch.delay_dispatch`` of *app*; no-op if already registered."""
    return app.task(_delay_dispatch, name=DELAY_DISPATCH, bind=True, shared=False, ignore_result=True)


def _putback(self: Any) -> dict[str, dict[str, int]]:
    return put_back_all(self.app)


def _delay_dispatch(self: Any) -> dict[str, int]:
    # In a thread where no task is current: the sent tasks must not become children of this one.
    with ThreadPoolExecutor(1, thread_name_prefix="redis-queue-dispatch") as thread:
        return thread.submit(dispatch_due, self.app).result()


def beat_schedule(*, queue: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the two beat entries; *queue* routes them to a Celery queue of their own."""
    route = {} if queue is None else {"queue": queue}
    return {
        "redis-queue-putback": {
            "task": PUTBACK,
            "schedule": PUTBACK_EVERY,
            "options": {"expires": PUTBACK_EVERY, **route},
        },
        "redis-queue-delay-dispatch": {
            "task": DELAY_DISPATCH,
            "schedule": DISPATCH_EVERY,
            "options": {"expires": DISPATCH_EXPIRES, **route},
        },
    }


def add_beat_entries(app: Celery, *, queue: str | None = None) -> None:
    """Register both tasks in *app* and add their beat entries, unless entries with these names exist."""
    register_putback(app)
    register_delay_dispatch(app)
    app.conf.beat_schedule = {**beat_schedule(queue=queue), **(app.conf.beat_schedule or {})}


def wait_in_outages() -> None:
    """Make beat send a run that is due once its broker takes it, for apps with DurableTasks; no-op if already done.

    Celery logs a stack trace for each run that it cannot send, and leaves it out.
    """
    signals.beat_init.connect(_on_beat, weak=False, dispatch_uid="redis_queue_beat_waits")


def _on_beat(sender: Any, **_: Any) -> None:
    if extension_of(sender.scheduler.app) is not None:
        _end_if_doubling(sender)
        if has(BEAT):
            _wait_in_outages(sender.scheduler, sender._is_shutdown)


def _end_if_doubling(service: Any) -> None:
    """End a beat with another scheduler if dispatchers send ``beat_schedule``."""
    scheduler = service.scheduler
    if extension_of(scheduler.app).settings.schedules and not hasattr(scheduler, "redis_queue_loop"):
        logger.critical(
            "beat ends: redis_queue_schedules is on, so workers send beat_schedule, and it would be sent twice; run no "
            "beat, or celery beat -S redis_queue",
            extra={"action": "beat_doubles"},
        )
        service.stop()


def _wait_in_outages(scheduler: Any, stopped: Any) -> None:
    from celery.beat import SchedulingError  # noqa: PLC0415 - only beat has it loaded

    backoff = Backoff(first=0.2)
    log = OutageLog(logger, "beat cannot send", "beat sends again", action="beat_waits")

    def apply_async(send: Callable[..., Any], entry: Any, *args: Any, **options: Any) -> Any:
        while True:
            try:
                found = send(entry, *args, **options)
            except SchedulingError as error:
                cause = error.__context__
                if cause is None or not (is_outage(cause) or isinstance(cause, OperationalError)):
                    raise
                pause = backoff.next()
                log.note(StoreUnavailableError(hide_secrets(str(cause))), retry_in=pause)
                if stopped.wait(pause):
                    raise
            else:
                backoff.reset()
                log.end()
                return found

    around(scheduler, "apply_async", apply_async)
