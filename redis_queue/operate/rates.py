"""Rates of queues: the difference between two overviews."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from redis_queue.operate.celery_queue_row import CeleryQueueRow
from redis_queue.operate.queue_row import Overview, QueueRow
from redis_queue.store.keys import Kind

QueueKey = tuple[Kind | Literal["celery"], str]


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages per second between two overviews."""

    put: float
    acked: float
    redelivered: float


def rates(before: Overview | None, now: Overview) -> dict[QueueKey, Rates]:
    """Return the rates of each queue in both overviews; at least 0, even if a queue was emptied and created again."""
    seconds = (now.at - before.at).total_seconds() if before is not None else 0.0
    if before is None or seconds <= 0:
        return {}
    rows = {(row.kind, row.name): row for row in before.queues if not row.error}
    return {
        (row.kind, row.name): _between(rows[row.kind, row.name], row, seconds)
        for row in now.queues
        if not row.error and (row.kind, row.name) in rows
    }


def rates_of(rows: Iterable[CeleryQueueRow]) -> dict[QueueKey, Rates]:
    """Return the rates of Celery's queues that workers report: means of five minutes."""
    return {
        ("celery", row.name): Rates((row.put_per_minute or 0.0) / 60, row.executed_per_minute / 60, 0.0)
        for row in rows
        if row.executed_per_minute is not None and not row.error
    }


def _between(before: QueueRow, now: QueueRow, seconds: float) -> Rates:
    def rate(then: int, count: int) -> float:
        return max(0, count - then) / seconds

    return Rates(
        put=rate(before.put, now.put),
        acked=rate(before.acked, now.acked),
        redelivered=rate(before.redelivered, now.redelivered),
    )
