"""Dispatches: what dispatchers sent from a DelayQueue in the last hour, as the data of charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from redis_queue.catalog import open_as
from redis_queue.delay.model import Dispatched
from redis_queue.delay.queue import DelayQueue
from redis_queue.operate.queue_row import BROKEN
from redis_queue.store.registry import RegistryRow
from redis_queue.store.settings import Settings
from redis_queue.web.context import context

MINUTES: Final = 60

QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Plot:
    """Dispatches from a DelayQueue in each minute of the last hour, and in all, with *quantiles* of their lateness."""

    queue: str
    times: Sequence[datetime]
    sent: Sequence[int]
    refused: Sequence[int]
    worst: Sequence[float | None]
    total: Dispatched
    quantiles: Sequence[tuple[str, float]]


def plot_of(name: str) -> Plot | None:
    """Return the plot of a DelayQueue; None if nothing was ever dispatched, or its counts cannot be read."""
    try:
        # The counts of dispatchers are stored with the first shard.
        queue = open_as(DelayQueue, RegistryRow("delay", name, Settings().max_deliveries, 1), context().access.catalog)
        minutes, total = queue.dispatch_log.minutes(MINUTES), queue.dispatch_log.totals()
    except BROKEN:
        # A broken queue must not hide the others; its row shows the error.
        return None
    if not total.sent and not total.failed:
        return None
    return Plot(
        queue=queue.name,
        times=[minute.at for minute in minutes],
        sent=[minute.sent for minute in minutes],
        refused=[minute.failed for minute in minutes],
        worst=[minute.worst_seconds if minute.sent else None for minute in minutes],
        total=total,
        quantiles=[(name, total.lateness.quantile(share)) for name, share in QUANTILES.items()],
    )
