"""How the outbox reaches Redis: within short timeouts, and after a failure not at all for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from redis_queue.backoff import Backoff
from redis_queue.celery.store import Store
from redis_queue.delay import DelayQueue

if TYPE_CHECKING:
    from celery import Celery

COMMIT_TIMEOUT: Final = 0.3
"""Seconds that a view waits for one answer of Redis. Three attempts take a second."""

RELAY_TIMEOUT: Final = 5.0
"""Seconds that a relay of its own waits for one answer of Redis."""


def reach(app: Celery, timeout: float) -> DelayQueue:
    """Return the DelayQueue of *app* after its Redis has answered; *timeout* seconds are the limit of each answer.

    Raises StoreError after three attempts.
    """
    known = _QUEUES.setdefault(Store.of(app), {})
    queue = known.get(timeout)
    if queue is None:
        # This asks Redis, too.
        queue = known[timeout] = Store.of(app).within(timeout).delay_queue()
    else:
        check_answers(queue)
    return queue


def check_answers(queue: DelayQueue) -> None:
    """Raise StoreError unless the Redis of *queue* answers."""
    # Any short read would do, but no PING: the role of a producer does not allow it.
    queue.leader()


_QUEUES: Final[WeakKeyDictionary[Store, dict[float, DelayQueue]]] = WeakKeyDictionary()


class Breaker:
    """Let nobody wait for a Redis that failed a moment ago: 5 s after the first failure, up to a minute after more.

    After the pause one caller tries; the others go on without until it has an answer.
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
        """Note that it did."""
        self._pause_until = None
        self._backoff.reset()


FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 60.0

_BREAKERS: Final[WeakKeyDictionary[Store, Breaker]] = WeakKeyDictionary()


def breaker_of(app: Celery) -> Breaker:
    """Return the breaker of the Redis of *app* in this process."""
    return _BREAKERS.setdefault(Store.of(app), Breaker())
