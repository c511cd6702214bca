"""BrokerShare: while messages of flows wait, a worker takes fewer of its broker, so that both take turns."""

from __future__ import annotations

import math
import time
from typing import Any, Final

KEEP: Final = 1.0
"""Seconds without messages of flows after which the prefetch count is that of Celery again."""


class BrokerShare:
    """Lowers the prefetch count of *consumer* to half of its processes while messages of flows wait for one.

    Messages that the worker takes ahead would start before them. No effect on quorum queues, whose prefetch count is
    static.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._qos = qos = consumer.qos
        self._set = qos.callback
        self._until = -math.inf
        self._is_low = False
        qos.callback = self._set_count

    def note(self, *, waits: bool) -> None:
        """Note whether messages of flows wait for a process."""
        now = time.monotonic()
        if waits:
            self._until = now + KEEP
        is_low = now < self._until
        if is_low != self._is_low:
            self._is_low = is_low
            # The event loop sets it in its next turn.
            self._qos.prev = None

    def end(self) -> None:
        """Take as many messages as Celery wants."""
        self._until = -math.inf
        self.note(waits=False)

    def _set_count(self, prefetch_count: int) -> Any:
        if not self._is_low:
            return self._set(prefetch_count=prefetch_count)
        share = max(1, (self._consumer.pool.num_processes or 1) // 2)
        # Celery raises the count for messages that wait in the worker.
        more = max(0, prefetch_count - self._consumer.initial_prefetch_count)
        return self._set(prefetch_count=share + more)
