"""Faults: errors of single queues, collected so that one broken queue does not hide the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from redis_queue.catalog import AnyQueue, kind_of
from redis_queue.errors import RedisQueueError, SchemaError, WrongTypeError
from redis_queue.operate.queue_row import QueueRow
from redis_queue.store.keys import Kind

BROKEN: Final = (WrongTypeError, SchemaError, ValueError, OverflowError)
"""Errors raised for a queue whose keys another tool has overwritten; ConfigurationError is a ValueError."""

MOST_QUEUES: Final = 5
"""Most queues that a text names."""


def fault_text(error: Exception) -> str:
    """Return the text for an error in :data:`BROKEN`."""
    return str(error) if isinstance(error, RedisQueueError) else "its counters cannot be read: redis-queue doctor"


@dataclass(slots=True)
class Faults:
    """One row with an error for each queue that could not be read."""

    rows: list[QueueRow] = field(default_factory=list)

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
        named = [f"{row.kind} {row.name}: {row.error}" for row in self.rows[:MOST_QUEUES]]
        more = len(self.rows) - MOST_QUEUES
        return "; ".join([*named, *([f"{more:,} more queues"] if more > 0 else [])])

    def add(self, row: QueueRow) -> None:
        """Record a row with an error, unless its queue has one already."""
        if (row.kind, row.name) not in {(known.kind, known.name) for known in self.rows}:
            self.rows.append(row)
