"""Access to Redis for the outbox: short timeouts, and a circuit breaker after failures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from redis_queue.basics.waits import Backoff
from redis_queue.celery.store import Store
from redis_queue.delay.queue import DelayQueue

if TYPE_CHECKING:
    from celery import Celery

COMMIT_TIMEOUT: Final = 0.3
"""Seconds to wait for each reply of Redis in a view. Three attempts take a second."""

RELAY_TIMEOUT: Final = 5.0
"""Seconds to wait for each reply of Redis in a relay process."""


def reach(app: Celery, timeout: float) -> DelayQueue:
    """Return the DelayQueue of *app* after a check that Redis answers; *timeout*: seconds for each reply.

    Raises StoreError after three attempts.
    """
    known = _QUEUES.setdefault(Store.of(app), {})
    queue = known.get(timeout)
    if queue is None:
        # Opening the queue sends commands to Redis, too.
        queue = known[timeout] = Store.of(app).within(timeout).delay_queue()
    else:
        check_answers(queue)
    return queue


def check_answers(queue: DelayQueue) -> None:
    """Raise StoreError unless the Redis of *queue* answers."""
    # A short read; not PING, which the role of a producer does not allow.
    queue.moves.leader()


_QUEUES: Final[WeakKeyDictionary[Store, dict[float, DelayQueue]]] = WeakKeyDictionary()


class Breaker:
    """Circuit breaker: skip Redis for 5 s after a failure, and for up to a minute after repeated failures.

    After the pause one caller tries; the others skip Redis until that attempt ends.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._backoff = Backoff(first=FIRST_PAUSE, cap=LONGEST_PAUSE)
        self._pause_until: float | None = None

    def allows(self) -> bool:
        """Tell whether to try. After a failure True means: this caller is the one that tries."""
        if self._pause_until is None:
            return True
        now = self._clock()
        if now < self._pause_until:
            return False
        self._pause_until = now + FIRST_PAUSE
        return True

    def failed(self) -> None:
        """Note that Redis did not answer."""
        self._pause_until = self._clock() + self._backoff.next()

    def succeeded(self) -> None:
        """Note that Redis answered."""
        self._pause_until = None
        self._backoff.reset()


FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 60.0

_BREAKERS: Final[WeakKeyDictionary[Store, Breaker]] = WeakKeyDictionary()


def breaker_of(app: Celery) -> Breaker:
    """Return the breaker of the Redis of *app* in this process."""
    return _BREAKERS.setdefault(Store.of(app), Breaker())
