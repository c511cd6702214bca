"""Wake-ups: a sleep that ends when an earlier entry is stored."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import redis

from redis_queue.basics.logs import logger_of
from redis_queue.delay.queue import DelayQueue
from redis_queue.store.redis_errors import RedisErrors, translate

logger = logger_of(__name__)

SOCKET_STEP: Final = 0.0015
"""Seconds before the end of a wait at which it stops reading the socket, whose timeouts are whole milliseconds."""

LONGEST_STEP: Final = 0.25
"""Most seconds of one read, so that a stop is seen."""


class WakeUps:
    """A subscription to the wake-ups of *queue*.

    A dead connection looks like one without wake-ups. So every *interval* seconds Redis gets a PING on it; if the
    answer is missing at the next check, the connection is replaced.
    """

    def __init__(self, queue: DelayQueue, interval: float) -> None:
        self._queue = queue
        self._interval = interval
        self._step = min(interval, LONGEST_STEP)
        self._pubsub: redis.client.PubSub | None = None
        self._pinged_at = 0.0
        self._answered = True

    def listen(self) -> None:
        """Subscribe, or check that the subscription is alive; call it before each look for due entries."""
        try:
            self._check()
        except RedisErrors:
            self.close()
        if self._pubsub is None:
            self._subscribe()

    def wait(self, seconds: float, stopped: threading.Event) -> None:
        """Sleep for *seconds*, or until an earlier entry is stored or *stopped* is set. Raises StoreError."""
        until = time.monotonic() + seconds
        while self._pubsub is not None and not stopped.is_set():
            left = until - time.monotonic()
            if left <= SOCKET_STEP:
                time.sleep(max(0.0, left))
                return
            try:
                message = self._pubsub.get_message(timeout=min(left - SOCKET_STEP, self._step))
            except RedisErrors as error:
                raise translate(error) from error
            if message is not None and self._is_wake_up(message):
                return

    def close(self) -> None:
        """Unsubscribe."""
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            pubsub.close()

    def _check(self) -> None:
        if self._pubsub is None or time.monotonic() - self._pinged_at < self._interval:
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
        self._pubsub = pubsub

    def _ping(self, pubsub: redis.client.PubSub) -> None:
        pubsub.ping()
        self._pinged_at, self._answered = time.monotonic(), False

    def _is_wake_up(self, message: dict[str, Any]) -> bool:
        self._answered = self._answered or message["type"] == "pong"
        return bool(message["type"] == "message")
