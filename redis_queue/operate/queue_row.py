"""Rows: the counts of queues, of Celery's queues too, and why some cannot be read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final, Literal, TypeVar

from redis_queue.basics.logs import hide_secrets
from redis_queue.basics.options import counted
from redis_queue.catalog import AnyQueue, kind_of
from redis_queue.delay.model import sum_stats
from redis_queue.errors import RedisQueueError, SchemaError, WrongTypeError
from redis_queue.queue.claims import read_stats
from redis_queue.store.keys import Kind

SIZES: Final = ("ready", "delayed", "in_flight", "dead", "quarantined")
TOTALS: Final = ("put", "acked", "redelivered", "put_back")

Count = Literal[
    "ready", "delayed", "in_flight", "dead", "quarantined", "put", "acked", "redelivered", "put_back", "dispatched"
]

BROKEN: Final = (WrongTypeError, SchemaError, ValueError, OverflowError)
"""Errors raised for a queue whose keys another tool has overwritten; ConfigurationError is a ValueError."""

SORTS: Final = ("problem", "name", "kind", *SIZES, "workers", "rate", "growth", "oldest")
"""Orders of rows: problems first, by a name, or by a number, the largest first."""

_NUMBERS: Final = {
    "workers": "consumers",
    "rate": "executed_per_minute",
    "growth": "growth_per_minute",
    "oldest": "waited",
}
"""Attributes of rows with the numbers of these orders; the others have the same name."""

MAX_FAULTS: Final = 5
"""Maximum number of queues that a text names."""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """Counts of one queue: current sizes, and all-time totals, which none of Celery's queues has.

    For a DelayQueue, *ready* counts the entries that are due and *delayed* the others. *oldest_at* is when the oldest
    ready message was put, or when the longest overdue entry was due. *put_back* counts expired leases. Of a
    DelayQueue, *dispatched* counts the entries that dispatchers have sent, *acked* those that were claimed and acked.
    *error* says why a queue cannot be counted.
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
    dispatched: int = 0

    @classmethod
    def of_queue(cls, name: str, reply: Any) -> QueueRow:
        """Return the row of a RedisQueue from the *reply* of ``queue/stats``."""
        stats = read_stats(reply)
        counts: dict[str, Any] = {count: getattr(stats, count) for count in (*SIZES, *TOTALS)}
        return cls("queue", name, paused=stats.paused, oldest_at=stats.oldest_ready_at, **counts)

    @classmethod
    def of_delay(cls, name: str, replies: Sequence[Any], dispatched: int) -> QueueRow:
        """Return the row of a DelayQueue: *replies* are the counts of its shards, then their :data:`TOTALS`."""
        shards = len(replies) // 2
        stats = sum_stats(replies[:shards])
        columns = zip(*replies[shards:], strict=True)
        totals = (sum(int(count or 0) for count in column) for column in columns)
        counts: dict[str, Any] = dict(zip(TOTALS, totals, strict=True))
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
            dispatched=dispatched,
            **counts,
        )

    @property
    def urgency(self) -> tuple[float, ...]:
        """Compares rows: one that cannot be read, one that is paused with messages, by age, by size."""
        return bool(self.error), self.paused and bool(self.ready), self.waited, self.ready, self.dead

    @property
    def waited(self) -> float:
        """Compares how long the oldest messages of rows have waited."""
        return -math.inf if self.oldest_at is None else -self.oldest_at.timestamp()


@dataclass(frozen=True, slots=True)
class Overview:
    """The rows of all queues under a prefix, read at *at* (server time)."""

    at: datetime
    queues: Sequence[QueueRow]

    def total(self, count: Count) -> int:
        """Return the sum of one count over all queues."""
        return sum(getattr(row, count) for row in self.queues)


@dataclass(frozen=True, slots=True)
class CeleryQueueRow:
    """Counts of one of Celery's queues; None if unknown. *error* says why a queue cannot be counted.

    *ready* messages wait in the broker, *waiting_for_place* of them for a place in a flow; *in_flight* ones are with
    workers. *consumers* counts the workers that consume the queue: those with the extension, by their reports; on
    RabbitMQ the consumers that the broker counts.
    *oldest_age* is how many seconds the oldest waiting message has waited since it was sent, or since it was due if it
    was delayed; only messages of producers with the extension tell it. *executed_per_minute* is the mean of the last
    five minutes, by the reports of workers. *put_per_minute* is known if RabbitMQ's management API tells it, or after
    a second look: then it is *executed_per_minute* plus the growth of the queue. *growth_per_minute* is known after
    a second look, negative for a queue that shrinks.
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
    growth_per_minute: float | None = None

    def counted(self, at: datetime) -> QueueRow:
        """Return the counts at the time *at*, as those of any queue: 0 for what is unknown."""
        oldest_at = None if self.oldest_age is None else at - timedelta(seconds=self.oldest_age)
        ready, in_flight = self.ready or 0, self.in_flight or 0
        return QueueRow("celery", self.name, ready=ready, in_flight=in_flight, oldest_at=oldest_at, error=self.error)

    @property
    def urgency(self) -> tuple[float, ...]:
        """Compares rows: cannot be read, nobody reads it, it grows and nothing of it ends; then by age, by size."""
        grows = (self.growth_per_minute or 0) >= 1
        return (
            bool(self.error),
            self.is_unconsumed,
            grows and not self.executed_per_minute,
            self.waited,
            self.ready or 0,
        )

    @property
    def waited(self) -> float:
        """Compares how long the oldest messages of rows have waited."""
        return -math.inf if self.oldest_age is None else self.oldest_age

    @property
    def listed(self) -> int:
        """The number of messages in the lists of the queue: all that can be read, moved and deleted."""
        return max(0, (self.ready or 0) - self.waiting_for_place)

    @property
    def is_unconsumed(self) -> bool:
        """Whether messages wait and no known worker consumes the queue."""
        return bool(self.ready) and self.consumers == 0


@dataclass(frozen=True, slots=True)
class CeleryOverview:
    """Rows of some of Celery's queues, read at *at* (server time), and sums over all queues; None if unknown.

    *queues* counts all queues that match, *next* is the position after the last row, None after the last queue.
    *counted* are the rows that were read to find *rows*, these among them.
    """

    at: datetime
    rows: Sequence[CeleryQueueRow] = ()
    queues: int = 0
    next: int | None = None
    ready: int | None = None
    in_flight: int | None = None
    error: str = ""
    counted: Sequence[CeleryQueueRow] = ()


def fault_text(error: Exception) -> str:
    """Return the text for an error in :data:`BROKEN`, or of the store or the broker."""
    is_parsing = isinstance(error, ValueError | OverflowError) and not isinstance(error, RedisQueueError)
    return "its counters cannot be read: redis-queue doctor" if is_parsing else hide_secrets(str(error))


Row = TypeVar("Row", QueueRow, CeleryQueueRow)


def sort_rows(rows: Iterable[Row], order: str) -> list[Row]:
    """Return *rows* in one of :data:`SORTS`; equal ones by urgency, then as they come, which is by name."""
    if order in ("name", "kind"):
        return sorted(rows, key=attrgetter("name") if order == "name" else attrgetter("kind", "name"))
    number = _NUMBERS.get(order, order)

    def key(row: Row) -> tuple[float, tuple[float, ...]]:
        value = getattr(row, number, None)
        return -math.inf if value is None else value, row.urgency

    return sorted(rows, key=key, reverse=True)


@dataclass(slots=True)
class Faults:
    """One row with an error for each queue that could not be read."""

    rows: dict[tuple[str, str], QueueRow] = field(default_factory=dict)

    @contextmanager
    def of(self, kind: Kind, name: str) -> Iterator[None]:
        """Record an error of this queue, and continue after the block."""
        try:
            yield
        except BROKEN as error:
            self.add(QueueRow(kind, name, error=fault_text(error)))

    def of_queue(self, queue: AnyQueue) -> AbstractContextManager[None]:
        """As :meth:`of`."""
        return self.of(kind_of(queue), queue.name)

    def text(self) -> str:
        """Return all errors in one line; "" if there are none."""
        named = [f"{row.kind} {row.name}: {row.error}" for row in [*self.rows.values()][:MAX_FAULTS]]
        more = len(self.rows) - MAX_FAULTS
        return "; ".join([*named, *([counted(more, "more queue")] if more > 0 else [])])

    def add(self, row: QueueRow) -> None:
        """Record a row with an error, unless its queue has one already."""
        self.rows.setdefault((row.kind, row.name), row)
