"""DispatchLoop: waits until something is due and dispatches it, to the millisecond and nearly for free.

Of all loops on one queue, one leads: it sleeps exactly until the next due time and is woken when something earlier is
stored. The others only look now and then whether it still does. Leading saves work, it is no lock.
"""

from __future__ import annotations

import math
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import redis

from redis_queue.backoff import Backoff
from redis_queue.celery.dispatch.delivery import Dispatched
from redis_queue.celery.dispatch.dispatcher import Dispatcher
from redis_queue.celery.dispatch.dispatcher_name import has_ended, new_name
from redis_queue.celery.dispatch.report import DispatchNotes
from redis_queue.celery.store import Store
from redis_queue.delay.model import Leadership
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import RedisQueueError, StoreError
from redis_queue.lazy_property import LazyProperty
from redis_queue.logs import logger_of
from redis_queue.store.redis_errors import RedisErrors, translate

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

LEASES: Final = 2.5
"""A leader that was silent for so many intervals has lost its place."""

FOLLOWER: Final = 2.0
"""Intervals between two looks of one that follows; more where many do."""

SOCKET_STEP: Final = 0.0015
"""Seconds before the end of a wait at which it leaves the socket."""

RUN: Final = 0.5
"""Seconds that one run may take before the leader shows that it lives, or sees that it is to stop."""


LOOP: Final = "redis_queue_loop"
"""Attribute of an app that holds the DispatchLoop of this worker."""

WORKER: Final = "worker@"
"""The beginning of the name of a dispatcher that is a thread of a worker."""


class DispatchLoop:
    """Dispatches what falls due for *app* until :meth:`stop`; survives restarts of Redis and broker.

    Its name begins with *kind*, so that others see what it is a part of.
    """

    def __init__(self, app: Celery, *, kind: str = "") -> None:
        self._app = app
        self._store = Store(app)
        self._interval = self._store.settings.interval_seconds
        self._stopped = threading.Event()
        self._led_at = -math.inf
        self._put_back_at = -math.inf
        self._due = False
        self._first = True
        self.name = new_name(kind)
        self.leads = False
        self.total = Dispatched()

    @LazyProperty
    def _queue(self) -> DelayQueue:
        """The queue as it was written, which only Redis knows: it may be away when a worker starts."""
        return self._store.delay_queue()

    @LazyProperty
    def _dispatcher(self) -> Dispatcher:
        return Dispatcher(self._app, self._queue, settings=self._store.settings)

    @LazyProperty
    def _notes(self) -> DispatchNotes:
        return DispatchNotes(self._queue, self.name)

    @LazyProperty
    def _wake(self) -> _Wake:
        return _Wake(self._queue, self._interval)

    def open(self) -> None:
        """Connect now instead of at the first turn; raises StoreUnavailableError if the store is away."""
        self._queue.moves.due_in()

    def run(self) -> None:
        """Dispatch until :meth:`stop` is called from another thread or a signal handler."""
        backoff = Backoff()
        while not self._stopped.is_set():
            try:
                pause = self._turn()
                self._notes.write(leads=self.leads)
                self._wait(min(pause, self._notes.due_in()))
                backoff.reset()
            except Exception as error:  # noqa: BLE001 - whatever it was, what is stored must go on moving
                pause = backoff.next()
                logger.warning(
                    "cannot dispatch: %s", error, extra={"action": "dispatch_away", "retry_in": round(pause, 2)}
                )
                self._step_down()
                self._note_trouble(error)
                self._stopped.wait(pause)
        self._step_down()
        if "_queue" in vars(self):
            self._notes.leave()

    def stop(self) -> None:
        """End :meth:`run` within a quarter of a second, or with the batch it is at."""
        self._stopped.set()

    def _turn(self) -> float:
        """Lead if nobody else does and dispatch what is due; return the seconds to wait."""
        now = time.monotonic()
        if now - self._led_at >= self._interval * 0.9:
            leadership = self._lead()
            self.leads = leadership.mine
            if not self.leads:
                return self._follow(leadership.left)
            self._led_at = now
        self._wake.listen()
        if now - self._put_back_at >= self._queue.settings.lease_ms / 1000:
            # What a dispatcher held that died between its claim and its ack; not every app has the beat task for it.
            # Where that fails for one shard, it must not come before each dispatch.
            self._put_back_at = now
            self._queue.put_back()
        done = self._dispatcher.run(RUN, due=self._due)
        self.total += done
        self._notes.add(done)
        self._due = done.more or done.next_in < self._interval
        # A run that ended at its time limit knows of no next one, but that more is due.
        return 0.0 if done.more else min(self._interval, done.next_in)

    def _lead(self) -> Leadership:
        lease = self._interval * LEASES
        leadership = self._queue.moves.lead(self.name, lease)
        first, self._first = self._first, False
        # Only on startup: two dispatchers that cannot see each other's processes must not replace each other for ever.
        if first and not leadership.mine and has_ended(leadership.leader):
            self._queue.moves.lead(leadership.leader, 0)
            leadership = self._queue.moves.lead(self.name, lease)
        return leadership

    def _note_trouble(self, error: Exception) -> None:
        """Let others see what is wrong, unless it is Redis itself that is away."""
        if "_queue" in vars(self) and not isinstance(error, StoreError):
            self._notes.error = f"{type(error).__name__}: {error}"
            self._notes.write(leads=False)

    def _follow(self, left: float) -> float:
        self._wake.close()
        return max(min(left, self._interval * FOLLOWER), 0.05) * random.uniform(1.0, 1.2)

    def _wait(self, seconds: float) -> None:
        if self.leads:
            self._wake.wait(seconds, self._stopped)
        else:
            self._stopped.wait(seconds)

    def _step_down(self) -> None:
        """Leave the lead to another one: what fails here may work there."""
        led, self.leads, self._led_at = self.leads, False, -math.inf
        if "_queue" not in vars(self):
            return
        self._wake.close()
        self._dispatcher.close()
        if led:
            try:
                self._queue.moves.lead(self.name, 0)
            except RedisQueueError as error:
                logger.info("cannot step down: %s", error)


class _Wake:
    """Subscription to wake-ups: a sleep that ends when an earlier entry is stored.

    A dead connection looks the same as one without wake-ups. So every *interval* seconds Redis gets a PING on it; if
    the answer is missing at the next look, the connection is replaced.
    """

    def __init__(self, queue: DelayQueue, interval: float) -> None:
        self._queue = queue
        self._interval = interval
        self._step = min(interval, 0.25)
        self._pubsub: redis.client.PubSub | None = None
        self._asked_at = 0.0
        self._answered = True

    def listen(self) -> None:
        """Subscribe, or check that the subscription is alive; call it before each look for due entries."""
        try:
            self._check()
        except RedisErrors:
            self.close()
        if self._pubsub is None:
            self._subscribe()

    def _check(self) -> None:
        if self._pubsub is None or time.monotonic() - self._asked_at < self._interval:
            return
        # The next turn looks for due entries anyway.
        while (found := self._pubsub.get_message(timeout=0)) is not None:
            self._hear(found)
        if not self._answered:
            logger.warning("the wake-up subscription does not answer: replacing it", extra={"action": "wake_silent"})
            self.close()
            return
        self._ask(self._pubsub)

    def _ask(self, pubsub: redis.client.PubSub) -> None:
        pubsub.ping()
        self._asked_at, self._answered = time.monotonic(), False

    def _hear(self, message: dict[str, Any]) -> bool:
        """Note an answer; tell whether *message* is a wake-up."""
        self._answered = self._answered or message["type"] == "pong"
        return bool(message["type"] == "message")

    def _subscribe(self) -> None:
        pubsub = self._queue.client.pubsub()  # type: ignore[no-untyped-call]
        try:
            pubsub.subscribe(*self._queue.moves.wake_channels())
            self._ask(pubsub)
        except RedisErrors as error:
            pubsub.close()
            raise translate(error) from error
        self._pubsub = pubsub

    def wait(self, seconds: float, stopped: threading.Event) -> None:
        """Sleep for *seconds*, or until something earlier was stored or *stopped* is set."""
        until = time.monotonic() + seconds
        while self._pubsub is not None and not stopped.is_set():
            left = until - time.monotonic()
            if left <= SOCKET_STEP:
                # The end of the time goes by a sleep: a socket's timeout is a whole number of milliseconds.
                time.sleep(max(0.0, left))
                return
            try:
                # A short step lets a stop be seen.
                found = self._pubsub.get_message(timeout=min(left - SOCKET_STEP, self._step))
                if found is not None and self._hear(found):
                    return
            except RedisErrors as error:
                raise translate(error) from error

    def close(self) -> None:
        """Unsubscribe."""
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            pubsub.close()


def answers(app: Celery) -> bool:
    """Tell whether this worker speaks for what is stored: the one that leads, or each if none of them does.

    Raises StoreError if that cannot be asked.
    """
    loop: DispatchLoop | None = vars(app).get(LOOP)
    if loop is not None and loop.leads:
        return True
    leader = Store.of(app).delay_queue().moves.leader()
    return leader is None or not leader.startswith(WORKER)
