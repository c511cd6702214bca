"""The two periodic tasks: put-back over all known queues, and the dispatch of due entries."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from redis_queue.celery.dispatch.delivery import Dispatched
from redis_queue.celery.dispatch.dispatcher import Dispatcher
from redis_queue.celery.dispatch.report import DispatchNotes
from redis_queue.celery.store import Store
from redis_queue.errors import RedisQueueError
from redis_queue.logs import logger_of
from redis_queue.putback import put_back_each

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

PUTBACK: Final = "tasks.putback.putback"
DELAY_DISPATCH: Final = "tasks.delay_dispatch.delay_dispatch"

_TICK: Final = "redis_queue_tick"

PUTBACK_EVERY: Final = 300.0
DISPATCH_EVERY: Final = 1.0
DISPATCH_EXPIRES: Final = 5.0
"""A tick that waited so long behind other tasks is dropped: a younger one does its work."""


def put_back_all(app: Celery) -> dict[str, dict[str, int]]:
    """End the expired leases of every queue in the registry; return what was done, by kind and name.

    One broken queue does not keep the others from being served; its error is raised at the end.
    """
    inspector = Store.of(app).inspector
    done: dict[str, Counter[str]] = {}
    failed: RedisQueueError | None = None
    for served in put_back_each(inspector, inspector.known(), promote=True):
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
    """Send what is due in the app's DelayQueue into its Celery queues; return how many were sent and failed.

    A call that comes while another one of this process is at it does nothing.
    """
    done = _Tick.of(app).run()
    return {"sent": done.sent, "failed": done.failed}


class _Tick:
    """The dispatcher of one process, kept from tick to tick with its connections."""

    def __init__(self, app: Celery) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._queue = Store.of(app).delay_queue()
        self._spreads = Store.of(app).settings.overdue_policy.policy == "spread"
        self._dispatcher = Dispatcher(app, self._queue)
        self._notes = DispatchNotes(self._queue, f"{socket.gethostname()}:{os.getpid()}:task")

    def run(self) -> Dispatched:
        """Dispatch what is due, unless another call is at it or one dispatcher alone has to keep a rate."""
        if not self._lock.acquire(blocking=False):
            return Dispatched()
        try:
            done = Dispatched() if self._spreads and self._queue.moves.leader() else self._dispatcher.run()
            self._notes.add(done)
            # Nobody knows whether another tick comes to this process.
            self._notes.write(leads=False, at_once=True)
            return done
        finally:
            self._lock.release()

    @classmethod
    def of(cls, app: Celery) -> _Tick:
        """Return the one of *app* in this process, made at the first tick."""
        found: _Tick | None = vars(app).get(_TICK)
        if found is None or found.pid != os.getpid():
            found = cls(app)
            setattr(app, _TICK, found)
        return found


def register_putback(app: Celery) -> Any:
    """Return the task ``tasks.putback.putback`` of *app*; doing so twice is harmless."""
    return app.task(_putback, name=PUTBACK, bind=True, shared=False, ignore_result=True)


def register_delay_dispatch(app: Celery) -> Any:
    """Return the task ``tasks.delay_dispatch.delay_dispatch`` of *app*; doing so twice is harmless."""
    return app.task(_delay_dispatch, name=DELAY_DISPATCH, bind=True, shared=False, ignore_result=True)


def _putback(self: Any) -> dict[str, dict[str, int]]:
    return put_back_all(self.app)


def _delay_dispatch(self: Any) -> dict[str, int]:
    # In a thread of its own, where no task is current: what it sends must not become a child of the tick.
    with ThreadPoolExecutor(1, thread_name_prefix="redis-queue-dispatch") as thread:
        return thread.submit(dispatch_due, self.app).result()


def beat_schedule(*, queue: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the two beat entries; *queue* routes them into a Celery queue of their own."""
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


def install(app: Celery, *, queue: str | None = None) -> None:
    """Register both tasks in *app* and add their beat entries, unless entries of these names are there."""
    register_putback(app)
    register_delay_dispatch(app)
    app.conf.beat_schedule = {**beat_schedule(queue=queue), **(app.conf.beat_schedule or {})}
