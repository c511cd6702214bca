"""TicksFirst: the order in which a worker on Redis reads its queues."""

from __future__ import annotations

from collections.abc import Iterable

from kombu.utils.scheduling import priority_cycle

TICKS = "redis_queue"


class TicksFirst(priority_cycle):
    """The queue of the ticks, then the others.

    kombu's own "priority" keeps the order of ``task_queues`` from version 5.7 on; older versions use any order.
    """

    def update(self, it: Iterable[str]) -> None:
        """Set the queues, in order."""
        self.items[:] = sorted(it, key=lambda queue: queue != TICKS)
