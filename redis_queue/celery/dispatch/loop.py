"""DispatchLoop: dispatch each entry when it falls due, to the millisecond; almost idle while nothing is due."""

from __future__ import annotations

import math
import os
import random
import re
import socket
import threading
import time
from typing import Any, Final

import redis
from celery import Celery, bootsteps

from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.logs import OutageLog, logger_of
from redis_queue.basics.times import monotonic
from redis_queue.basics.waits import Backoff
from redis_queue.celery.dispatch.dispatcher import Dispatcher
from redis_queue.celery.dispatch.outcome import DispatchReport
from redis_queue.celery.settings import extension_of
from redis_queue.celery.store import Store
from redis_queue.delay.model import Dispatched, Leadership
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import RedisQueueError, StoreError, StoreUnavailableError
from redis_queue.store.redis_errors import RedisErrors, is_refused, translate

logger = logger_of(__name__)

FOLLOWER: Final = 1.0
"""Maximum seconds after which a loop that does not lead checks the leader, before a random addition of up to half."""

BUDGET: Final = 0.5
"""Longest run in seconds. Between two runs, the loop renews its lease and checks whether it should stop."""

FIRE_BUDGET: Final = 0.05
"""Longest time in seconds that runs of schedules are sent before entries are dispatched: they are among these."""

LOOP: Final = "redis_queue_loop"
"""Attribute of an app that holds the DispatchLoop of this worker."""

WORKER: Final = "worker@"
"""Prefix of the name of a dispatcher that is a thread of a worker."""

STOP_WITHIN: Final = 1.0
"""Seconds that a warm shutdown waits for the thread."""

LEADER_LEASE: Final = 2.5
"""Intervals after which a silent leader is replaced."""

RENEW: Final = 0.9
"""Intervals between two renewals."""

_NAME: Final = re.compile(r"(?:\w+@)?(.+):(\d{1,9}):[0-9a-f]{8}")

_own: Final[set[str]] = set()

SOCKET_STEP: Final = 0.0015
"""Seconds before the end of a wait at which it stops reading the socket, whose timeouts are whole milliseconds."""

MAX_STEP: Final = 0.25
"""Maximum seconds of one read, so that a stop is seen."""


class DispatchLoop:
    """Dispatches due entries of *app* until :meth:`stop`; survives restarts of Redis and of the broker.

    Of all loops on one queue, one leads: it sleeps until the next due time, and wakes up when an earlier entry is
    stored. The others only check at intervals whether it is alive. The name of a loop begins with *kind*. *declares*:
    store the app's ``beat_schedule`` first; None: if the setting ``redis_queue_schedules`` says so.
    """

    def __init__(self, app: Celery, *, kind: str = "", declares: bool | None = None) -> None:
        self._app = app
        self._store = Store(app)
        self._schedules = ScheduleLoop(app, self._store, declares=declares)
        self._interval = self._store.settings.dispatch_interval_seconds
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
        self._schedules.declare()
        left = self._leader.renew()
        if not self.leads:
            self._wake_ups.close()
            return max(min(left, FOLLOWER), 0.05) * random.uniform(1.0, 1.5)
        self._wake_ups.listen()
        self._put_back()
        self._schedules.run(woken=self._wake_ups.take())
        done = self._dispatcher.run(BUDGET, due=self._due)
        self.total += done
        self._report.add(done)
        self._due = done.more or done.next_in < self._interval
        # After a run that ended at its budget, the next due time is not known.
        return 0.0 if done.more else min(self._interval, done.next_in, self._schedules.due_in())

    def _put_back(self) -> None:
        """Put back the entries of dead dispatchers, once per lease: not every app runs the periodic task."""
        now = monotonic()
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


def lists_stored_tasks(app: Celery, queue: DelayQueue) -> bool:
    """Return whether this worker lists the tasks stored in *queue* for ``inspect scheduled``.

    The worker that leads does; if no worker leads, every worker does.

    Raises StoreError if Redis cannot be asked.
    """
    loop: DispatchLoop | None = vars(app).get(LOOP)
    if loop is not None and loop.leads:
        return True
    leader = queue.moves.leader()
    return leader is None or not leader.startswith(WORKER)


class DispatchStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Runs a DispatchLoop beside the worker; invalid settings stop the worker on startup."""

    # Start after the pool: a process should not fork while its threads run.
    requires = ("celery.worker.components:Timer", "celery.worker.components:Pool")

    def __init__(self, parent: Any, without_dispatch: bool = False, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._thread: threading.Thread | None = None
        self._loop: DispatchLoop | None = None
        self.enabled = Store.of(parent.app).settings.dispatch and not without_dispatch

    def start(self, parent: Any) -> None:
        """Start the thread, with its own connections."""
        self._loop = DispatchLoop(parent.app, kind=WORKER)
        setattr(parent.app, LOOP, self._loop)
        self._thread = threading.Thread(target=self._loop.run, name="redis-queue-dispatch", daemon=True)
        self._thread.start()

    def stop(self, parent: Any) -> None:  # noqa: ARG002 - what Celery calls
        """Stop the thread; if it takes too long, its entries come back when their leases end."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        loop.stop()
        thread.join(STOP_WITHIN)
        if thread.is_alive():
            logger.warning("the dispatch thread is still sending a batch", extra={"action": "dispatch_slow_stop"})

    terminate = stop


class ScheduleLoop:
    """The part of a DispatchLoop that sends runs of schedules, if the app has DurableTasks with delays.

    Never raises: an error here must not keep delayed tasks from being sent.
    """

    def __init__(self, app: Celery, store: Store, *, declares: bool | None) -> None:
        extension = extension_of(app)
        self._durable = extension if extension is not None and extension.delays else None
        self._declares = store.settings.schedules if declares is None else declares
        self._interval = store.settings.dispatch_interval_seconds
        self._look_at = self._declare_at = -math.inf
        self._undeclared = OutageLog(
            logger, "cannot declare beat_schedule", "beat_schedule is declared", action="schedules_undeclared"
        )
        self._outage = OutageLog(logger, "cannot send schedules", "sending schedules again", action="schedules_away")
        self._backoff = Backoff()

    def declare(self) -> None:
        """Store the app's ``beat_schedule``, once; again after a pause if Redis refused it, as a full one does.

        Raises StoreUnavailableError: the caller tries again.
        """
        if not self._declares or self._durable is None or monotonic() < self._declare_at:
            return
        try:
            self._durable.declare_schedules()
        except StoreUnavailableError:
            raise
        except StoreError as error:
            pause = self._backoff.next()
            self._undeclared.note(error, retry_in=pause)
            self._declare_at = monotonic() + pause
            return
        except Exception:
            logger.exception("cannot declare beat_schedule", extra={"action": "schedules_undeclared"})
        self._undeclared.end()
        self._declares = False

    def run(self, *, woken: bool, budget: float = FIRE_BUDGET) -> None:
        """Send the runs that are due, at most for *budget* seconds; no-op before the next look unless *woken*."""
        if self._durable is None or (self.due_in() > 0 and not woken):
            return
        try:
            left = min(self._interval, self._durable.schedules.dispatch.run(budget))
            self._outage.end()
            self._backoff.reset()
        except Exception as error:  # noqa: BLE001 - as the docstring says
            left = min(self._interval, self._backoff.next())
            self._outage.note(error, retry_in=left)
        self._look_at = monotonic() + left

    def due_in(self) -> float:
        """Return the seconds until the next look; inf if the app has no schedules."""
        return math.inf if self._durable is None else max(0.0, self._look_at - monotonic())


class LeaderLease:
    """The lease under which the dispatcher *name* leads. Leading saves work; entries move safely without it."""

    def __init__(self, queue: DelayQueue, name: str, interval: float) -> None:
        self._queue = queue
        self._name = name
        self._interval = interval
        self._renewed_at = -math.inf
        self._is_first = True
        #: Whether this dispatcher leads.
        self.is_mine = False

    def renew(self) -> float:
        """Take or renew the lease when it is time; return the seconds for which another dispatcher leads, 0 if none."""
        now = monotonic()
        if now - self._renewed_at < self._interval * RENEW:
            return 0.0
        leadership = self.take()
        self.is_mine = leadership.mine
        if leadership.mine:
            self._renewed_at = now
            return 0.0
        return leadership.left

    def take(self) -> Leadership:
        """Take the lease unless another dispatcher has it; replace a leader of this host whose process has ended.

        That happens only on startup: two dispatchers that cannot see each other's processes would take turns forever.
        """
        leadership = self._lead()
        is_first, self._is_first = self._is_first, False
        if is_first and not leadership.mine and has_ended(leadership.leader):
            self._queue.moves.lead(leadership.leader, 0)
            leadership = self._lead()
        return leadership

    def release(self) -> None:
        """Let another dispatcher lead; best effort."""
        led, self.is_mine, self._renewed_at = self.is_mine, False, -math.inf
        if led:
            try:
                self._queue.moves.lead(self._name, 0)
            except RedisQueueError as error:
                logger.info("cannot step down: %s", error)

    def _lead(self) -> Leadership:
        return self._queue.moves.lead(self._name, self._interval * LEADER_LEASE)


def new_name(kind: str = "") -> str:
    """Return a new name for a dispatcher of this process; it begins with *kind*."""
    name = f"{kind}{socket.gethostname()}:{os.getpid()}:{random.getrandbits(32):08x}"
    _own.add(name)
    return name


def has_ended(name: str) -> bool:
    """Return whether *name* belongs to a process of this host that no longer exists.

    Containers that share a host name but no processes may be wrong about each other.
    """
    found = _NAME.fullmatch(name)
    if found is None or found[1] != socket.gethostname():
        return False
    pid = int(found[2])
    if pid == os.getpid():
        # In a restarted container this process may have the process id of its predecessor.
        return name not in _own
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        # It belongs to another user.
        return False
    return False


class WakeUps:
    """A subscription to the wake-ups of *queue*.

    A dead connection looks like one without wake-ups. So every *interval* seconds Redis gets a PING on it; if the
    answer is missing at the next check, the connection is replaced.
    """

    def __init__(self, queue: DelayQueue, interval: float) -> None:
        self._queue = queue
        self._interval = interval
        self._step = min(interval, MAX_STEP)
        self._pubsub: redis.client.PubSub | None = None
        self._pinged_at = 0.0
        self._answered = True
        self._woken = True
        # Whether Redis refuses subscriptions for good.
        self._is_off = False

    def take(self) -> bool:
        """Return whether there was a wake-up, or a new subscription, since the last call."""
        woken, self._woken = self._woken, False
        return woken

    def listen(self) -> None:
        """Subscribe, or check that the subscription is alive; call it before each look for due entries."""
        try:
            self._check()
        except RedisErrors:
            self.close()
        if self._pubsub is None and not self._is_off:
            self._subscribe()

    def wait(self, seconds: float, stopped: threading.Event) -> None:
        """Sleep for *seconds*, or until an earlier entry is stored or *stopped* is set. Raises StoreError."""
        until = monotonic() + seconds
        while self._pubsub is not None and not stopped.is_set():
            left = until - monotonic()
            if left <= SOCKET_STEP:
                time.sleep(max(0.0, left))
                return
            try:
                message = self._pubsub.get_message(timeout=min(left - SOCKET_STEP, self._step))
            except RedisErrors as error:
                if not is_refused(error):
                    raise translate(error) from error
                self._turn_off(error)
                break
            if message is not None and self._is_wake_up(message):
                return
        if self._is_off:
            stopped.wait(min(seconds, FOLLOWER))

    def _turn_off(self, error: Exception) -> None:
        self.close()
        self._is_off = True
        text = "no wake-ups, so a task with a short delay may be sent up to %g s late: %s"
        logger.warning(text, FOLLOWER, translate(error), extra={"action": "wake_refused"})

    def close(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            pubsub.close()

    def _check(self) -> None:
        if self._pubsub is None or monotonic() - self._pinged_at < self._interval:
            return
        # Wake-ups may be skipped here: the caller looks for due entries anyway.
        while (message := self._pubsub.get_message(timeout=0)) is not None:
            self._is_wake_up(message)
        if self._answered:
            self._ping(self._pubsub)
        else:
            logger.warning("the wake-up subscription does not answer: replacing it", extra={"action": "wake_silent"})
            self.close()

    def _subscribe(self) -> None:
        pubsub = self._queue.client.pubsub()  # type: ignore[no-untyped-call]
        try:
            pubsub.subscribe(*self._queue.moves.wake_channels())
            self._ping(pubsub)
        except RedisErrors as error:
            pubsub.close()
            raise translate(error) from error
        self._pubsub, self._woken = pubsub, True

    def _ping(self, pubsub: redis.client.PubSub) -> None:
        pubsub.ping()
        self._pinged_at, self._answered = monotonic(), False

    def _is_wake_up(self, message: dict[str, Any]) -> bool:
        self._answered = self._answered or message["type"] == "pong"
        woken = bool(message["type"] == "message")
        self._woken = self._woken or woken
        return woken
