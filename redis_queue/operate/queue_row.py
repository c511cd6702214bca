"""QueueRow and Overview: sizes and totals of queues at one time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from redis_queue.delay.model import sum_stats
from redis_queue.queue.claims import read_stats
from redis_queue.store.keys import Kind

TOTALS: Final = ("put", "acked", "redelivered", "put_back")

Count = Literal["ready", "delayed", "in_flight", "dead", "quarantined", "put", "acked", "redelivered", "put_back"]


@dataclass(frozen=True, slots=True)
class QueueRow:
    """Counts of one queue: current sizes, and all-time totals, which none of Celery's queues has.

    For a DelayQueue, *ready* counts the entries that are due and *delayed* the others. *oldest_at* is when the oldest
    ready message was put, or when the longest overdue entry was due. *put_back* counts expired leases. *error* says
    why a queue cannot be counted.
    """

    kind: Kind | Literal["celery"]
    name: str
    ready: int = 0
    delayed: int = 0
    in_flight: int = 0
    dead: int = 0
    quarantined: int = 0
    paused: bool = False
    put: int = 0
    acked: int = 0
    redelivered: int = 0
    oldest_at: datetime | None = None
    next_due: datetime | None = None
    error: str = ""
    put_back: int = 0

    @classmethod
    def of_queue(cls, name: str, reply: Any) -> QueueRow:
        """Return the row of a RedisQueue from the *reply* of ``queue/stats``."""
        stats = read_stats(reply)
        return cls(
            "queue",
            name,
            ready=stats.ready,
            delayed=stats.delayed,
            in_flight=stats.in_flight,
            dead=stats.dead,
            quarantined=stats.quarantined,
            paused=stats.paused,
            put=stats.put,
            acked=stats.acked,
            redelivered=stats.redelivered,
            put_back=stats.put_back,
            oldest_at=stats.oldest_ready_at,
        )

    @classmethod
    def of_delay(cls, name: str, replies: Sequence[Any]) -> QueueRow:
        """Return the row of a DelayQueue: *replies* are the counts of its shards, then their :data:`TOTALS`."""
        shards = len(replies) // 2
        stats = sum_stats(replies[:shards])
        columns = zip(*replies[shards:], strict=True)
        put, acked, redelivered, put_back = (sum(int(count or 0) for count in column) for column in columns)
        return cls(
            "delay",
            name,
            ready=stats.due,
            delayed=stats.waiting - stats.due,
            in_flight=stats.in_flight,
            dead=stats.dead,
            quarantined=stats.quarantined,
            oldest_at=stats.next_due if stats.due else None,
            next_due=stats.next_due,
            put=put,
            acked=acked,
            redelivered=redelivered,
            put_back=put_back,
        )


@dataclass(frozen=True, slots=True)
class Overview:
    """The rows of all queues under a prefix, read at *at* (server time)."""

    at: datetime
    queues: Sequence[QueueRow]

    def total(self, count: Count) -> int:
        """Return the sum of one count over all queues."""
        return sum(getattr(row, count) for row in self.queues)
