"""CeleryQueueRow: what waits in one of Celery's queues, what workers hold of it, and who consumes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from redis_queue.operate.queue_row import QueueRow


@dataclass(frozen=True, slots=True)
class CeleryQueueRow:
    """Counts of one of Celery's queues; None if unknown. *error* says why a queue cannot be counted.

    *ready* messages wait in the broker, *waiting_for_place* of them for a place in a flow; *in_flight* ones are with
    workers. *consumers* counts the workers that consume the queue: those with the extension, by their reports; on
    RabbitMQ the consumers that the broker counts.
    *oldest_age* is how many seconds the oldest waiting message has waited since it was sent, or since it was due if it
    was delayed; only messages of producers with the extension tell it. *executed_per_minute* is the mean of the last
    five minutes, by the reports of workers. *put_per_minute* is known if RabbitMQ's management API tells it, or after
    a second look: then it is *executed_per_minute* plus the growth of the queue.
    """

    kind: Literal["celery"] = field(default="celery", init=False)
    name: str
    ready: int | None = None
    in_flight: int | None = None
    consumers: int | None = None
    oldest_age: float | None = None
    executed_per_minute: float | None = None
    put_per_minute: float | None = None
    error: str = ""
    waiting_for_place: int = 0

    def counted(self, at: datetime) -> QueueRow:
        """Return the counts at the time *at*, as those of any queue: 0 for what is unknown."""
        oldest_at = None if self.oldest_age is None else at - timedelta(seconds=self.oldest_age)
        ready, in_flight = self.ready or 0, self.in_flight or 0
        return QueueRow("celery", self.name, ready=ready, in_flight=in_flight, oldest_at=oldest_at, error=self.error)

    @property
    def listed(self) -> int:
        """The number of messages in the lists of the queue: all that can be read, moved and deleted."""
        return max(0, (self.ready or 0) - self.waiting_for_place)

    @property
    def is_unread(self) -> bool:
        """Whether messages wait and no known worker consumes the queue."""
        return bool(self.ready) and self.consumers == 0


@dataclass(frozen=True, slots=True)
class CeleryOverview:
    """Rows of some of Celery's queues, read at *at* (server time), and sums over all queues; None if unknown.

    *queues* counts all queues that match, *next* is the position after the last row, None after the last queue.
    *workers* and *busy* are the numbers of workers that report, and of tasks that they run.
    """

    at: datetime
    rows: Sequence[CeleryQueueRow] = ()
    queues: int = 0
    next: int | None = None
    ready: int | None = None
    in_flight: int | None = None
    error: str = ""
    workers: int = 0
    busy: int = 0
