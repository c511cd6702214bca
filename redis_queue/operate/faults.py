"""Faults: what keeps single queues from being read, so that one broken queue does not hide the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from redis_queue.inspector import BROKEN, AnyQueue, QueueRow, kind_of, told
from redis_queue.store.keys import Kind

MOST_TOLD: Final = 5
"""Queues that a text names."""


@dataclass(slots=True)
class Faults:
    """One row with an error for each queue that could not be read."""

    rows: list[QueueRow] = field(default_factory=list)

    @contextmanager
    def of(self, kind: Kind, name: str) -> Iterator[None]:
        """Note what is wrong with a queue, and go on behind this block."""
        try:
            yield
        except BROKEN as error:
            self.add(QueueRow(kind, name, error=told(error)))

    def of_queue(self, queue: AnyQueue) -> AbstractContextManager[None]:
        """As :meth:`of`."""
        return self.of(kind_of(queue), queue.name)

    def text(self) -> str:
        """Return all of it in a line; "" where nothing is wrong."""
        told = [f"{row.kind} {row.name}: {row.error}" for row in self.rows[:MOST_TOLD]]
        more = len(self.rows) - MOST_TOLD
        return "; ".join([*told, *([f"{more:,} queues more"] if more > 0 else [])])

    def add(self, row: QueueRow) -> None:
        """Note a row with an error, unless something is wrong with its queue already."""
        if (row.kind, row.name) not in {(known.kind, known.name) for known in self.rows}:
            self.rows.append(row)
