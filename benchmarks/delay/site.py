"""The servers and the size of a run of the benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from benchmarks.delay.apps import Place


@dataclass(frozen=True, slots=True)
class Scale:
    """The numbers of entries, tasks and seconds."""

    sent_singly: int = 5_000
    sent_in_bulk: int = 20_000
    moved: int = 20_000
    burst: int = 20_000
    seconds: float = 20.0
    idle_seconds: float = 30.0
    largest: int | None = 1_000_000


SMALL = Scale(sent_singly=2_000, sent_in_bulk=5_000, burst=4_000, seconds=5.0, idle_seconds=6.0, largest=None)


@dataclass(frozen=True, slots=True)
class Site:
    """The private servers of a run; *url* holds entries and queues, *other* is a second Redis."""

    folder: Path
    url: str
    other: str
    rabbitmq: str
    scale: Scale

    def client(self) -> Any:
        """Return a client of the first Redis."""
        return redis.Redis.from_url(self.url)

    def stock(self) -> Place:
        """Return the place of a stock Celery app."""
        return Place(self.url)

    def delayed(self, entries: str = "bench", *, atomic_fetch: bool = False) -> Place:
        """Return the place of an app with DurableTasks in the delay queue *entries*, and leases with *atomic_fetch*."""
        return Place(self.url, store=self.url, entries=entries, atomic_fetch=atomic_fetch)

    def used_memory(self) -> int:
        """Return the bytes that Redis uses."""
        return int(self.client().info("memory")["used_memory"])

    def requests(self) -> int:
        """Return how often Redis has read from a client: its round trips, without the commands within scripts."""
        return int(self.client().info("stats")["total_reads_processed"])


Tell = Callable[[str], None]
"""Prints a line of progress."""
