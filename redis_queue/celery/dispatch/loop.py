"""DispatchLoop: dispatch each entry when it falls due, to the millisecond; almost idle while nothing is due."""

from __future__ import annotations

import math
import random
import threading
import time
from typing import TYPE_CHECKING, Final

from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.logs import OutageLog, logger_of
from redis_queue.basics.waits import Backoff
from redis_queue.celery.dispatch.dispatcher import Dispatcher
from redis_queue.celery.dispatch.dispatcher_name import new_name
from redis_queue.celery.dispatch.leader import LeaderLease
from redis_queue.celery.dispatch.outcome import Dispatched
from redis_queue.celery.dispatch.report import DispatchReport
from redis_queue.celery.dispatch.wake import WakeUps
from redis_queue.celery.store import Store
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import StoreError

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

FOLLOWER: Final = 2.0
"""Most intervals after which a loop that does not lead checks the leader, before a random addition."""

BUDGET: Final = 0.5
"""Longest run in seconds. Between two runs, the loop renews its lease and checks whether it should stop."""

LOOP: Final = "redis_queue_loop"
"""Attribute of an app that holds the DispatchLoop of this worker."""

WORKER: Final = "worker@"
"""Prefix of the name of a dispatcher that is a thread of a worker."""


class DispatchLoop:
    """Dispatches due entries of *app* until :meth:`stop`; survives restarts of Redis and of the broker.

    Of all loops on one queue, one leads: it sleeps until the next due time, and wakes up when an earlier entry is
    stored. The others only check at intervals whether it is alive. The name of a loop begins with *kind*.
    """

    def __init__(self, app: Celery, *, kind: str = "") -> None:
        self._app = app
        self._store = Store(app)
        self._interval = self._store.settings.interval_seconds
        self._stopped = threading.Event()
        self._put_back_at = -math.inf
        self._due = False
        self.name = new_name(kind)
        self.total = Dispatched()

    @LazyProperty
    def _queue(self) -> DelayQueue:
        """The queue, opened at first use with its stored settings: on startup, Redis may be unreachable."""
        return self._store.delay_queue()

    @LazyProperty
    def _dispatcher(self) -> Dispatcher:
        return Dispatcher(self._app, self._queue, settings=self._store.settings)

    @LazyProperty
    def _report(self) -> DispatchReport:
        return DispatchReport(self._queue, self.name)

    @LazyProperty
    def _leader(self) -> LeaderLease:
        return LeaderLease(self._queue, self.name, self._interval)

    @LazyProperty
    def _wake_ups(self) -> WakeUps:
        return WakeUps(self._queue, self._interval)

    @property
    def leads(self) -> bool:
        """Whether this loop leads."""
        return self._is_open and self._leader.is_mine

    @property
    def _is_open(self) -> bool:
        return "_queue" in vars(self)

    def open(self) -> None:
        """Connect now, not in :meth:`run`. Raises StoreUnavailableError if the store cannot be reached."""
        self._queue.moves.due_in()

    def run(self) -> None:
        """Dispatch until :meth:`stop` is called from another thread or a signal handler."""
        backoff, outage = Backoff(), OutageLog(logger, "cannot dispatch", "dispatching again", action="dispatch_away")
        while not self._stopped.is_set():
            try:
                pause = self._poll()
                outage.end()
                self._report.write(leads=self.leads)
                self._wait(min(pause, self._report.due_in()))
                backoff.reset()
            except Exception as error:  # noqa: BLE001 - no error may stop the dispatch of other entries
                pause = backoff.next()
                outage.note(error, retry_in=pause)
                self._step_down()
                self._report_error(error)
                self._stopped.wait(pause)
        self._step_down()
        if self._is_open:
            self._report.leave()

    def stop(self) -> None:
        """End :meth:`run` within a quarter of a second, or after the current batch."""
        self._stopped.set()

    def _poll(self) -> float:
        """Dispatch due entries if this loop leads; return the seconds to wait."""
        left = self._leader.renew()
        if not self.leads:
            self._wake_ups.close()
            return max(min(left, self._interval * FOLLOWER), 0.05) * random.uniform(1.0, 1.2)
        self._wake_ups.listen()
        self._put_back()
        done = self._dispatcher.run(BUDGET, due=self._due)
        self.total += done
        self._report.add(done)
        self._due = done.more or done.next_in < self._interval
        # After a run that ended at its budget, the next due time is not known.
        return 0.0 if done.more else min(self._interval, done.next_in)

    def _put_back(self) -> None:
        """Put back the entries of dead dispatchers, once per lease: not every app runs the periodic task."""
        now = time.monotonic()
        if now - self._put_back_at >= self._queue.settings.lease_ms / 1000:
            # Set before the call: if a shard is broken, the next poll must dispatch the others.
            self._put_back_at = now
            self._queue.put_back()

    def _wait(self, seconds: float) -> None:
        if self.leads:
            self._wake_ups.wait(seconds, self._stopped)
        else:
            self._stopped.wait(seconds)

    def _step_down(self) -> None:
        """Let another loop lead: it may work in another process."""
        if self._is_open:
            self._wake_ups.close()
            self._dispatcher.close()
            self._leader.release()

    def _report_error(self, error: Exception) -> None:
        """Show *error* in the list of dispatchers, unless it is an error of Redis itself."""
        if self._is_open and not isinstance(error, StoreError):
            self._report.error = f"{type(error).__name__}: {error}"
            self._report.write(leads=False)


def answers(app: Celery, queue: DelayQueue) -> bool:
    """Tell whether this worker lists the tasks stored in *queue* for ``inspect scheduled``.

    The worker that leads does; if no worker leads, every worker does.

    Raises StoreError if Redis cannot be asked.
    """
    loop: DispatchLoop | None = vars(app).get(LOOP)
    if loop is not None and loop.leads:
        return True
    leader = queue.moves.leader()
    return leader is None or not leader.startswith(WORKER)
