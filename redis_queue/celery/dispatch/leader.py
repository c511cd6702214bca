"""The lease of the leader: of all dispatchers on one queue, the leader waits for due entries."""

from __future__ import annotations

import math
import time
from typing import Final

from redis_queue.basics.logs import logger_of
from redis_queue.celery.dispatch.dispatcher_name import has_ended
from redis_queue.delay.model import Leadership
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import RedisQueueError

logger = logger_of(__name__)

LEASE: Final = 2.5
"""Intervals after which a silent leader is replaced."""

RENEW: Final = 0.9
"""Intervals between two renewals."""


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
        now = time.monotonic()
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

        That happens only on startup: two dispatchers that cannot see each other's processes would take turns for ever.
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
        return self._queue.moves.lead(self._name, self._interval * LEASE)
