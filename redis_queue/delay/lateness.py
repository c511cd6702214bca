"""Counts and lateness of dispatched entries: frozen records without I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from redis_queue.basics.histogram import NO_TIMES, Histogram


@dataclass(frozen=True, slots=True)
class Dispatches:
    """*sent* entries reached the broker; *failed* ones were given back or became dead letters.

    *lateness* is that of the sent entries, by the server's clock.
    """

    sent: int = 0
    failed: int = 0
    lateness: Histogram = NO_TIMES

    def __add__(self, other: Dispatches) -> Dispatches:
        return Dispatches(self.sent + other.sent, self.failed + other.failed, self.lateness + other.lateness)


@dataclass(frozen=True, slots=True)
class Minute:
    """Dispatches in the minute that began *at*: counts, and the sum and the maximum of lateness in seconds."""

    at: datetime
    sent: int = 0
    failed: int = 0
    late_seconds: float = 0.0
    worst_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DispatcherRow:
    """A dispatcher that was seen at *seen_at* by the server's clock.

    *sent* and *failed* count since its start; *error* is the error of its last turn, "" without one.
    """

    name: str
    seen_at: datetime
    leads: bool
    version: str
    sent: int
    failed: int
    error: str
