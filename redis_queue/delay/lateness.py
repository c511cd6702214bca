"""Counts and lateness of dispatched entries: frozen records without I/O."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from redis_queue.errors import InvalidValueError

BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 3600.0)
"""Upper bounds of the buckets of a :class:`Lateness` in seconds, each included; a last bucket holds the rest."""

BUCKETS: Final = len(BOUNDS) + 1

_BOUNDS_MS: Final = tuple(round(bound * 1000) for bound in BOUNDS)


@dataclass(frozen=True, slots=True)
class Lateness:
    """Time between due time and dispatch: the number of entries in each bucket, and the sum in seconds.

    ``counts[n]`` counts entries above the previous bound and not above ``BOUNDS[n]``; the last bucket has no bound.
    """

    counts: tuple[int, ...] = (0,) * BUCKETS
    seconds: float = 0.0

    def __add__(self, other: Lateness) -> Lateness:
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Lateness(counts, self.seconds + other.seconds)

    @classmethod
    def of(cls, late_ms: Iterable[float]) -> Lateness:
        """Sort lateness in ms into the buckets."""
        counts, total = [0] * BUCKETS, 0.0
        for late in late_ms:
            counts[bisect_left(_BOUNDS_MS, late)] += 1
            total += late
        return cls(tuple(counts), total / 1000)

    @property
    def total(self) -> int:
        """Number of dispatched entries."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """Estimate the lateness in seconds that a part *q* (0 to 1) of all entries did not exceed, as Prometheus does.

        Linear within a bucket; at most the greatest bound; NaN without entries. Raises InvalidValueError for an invalid
        *q*.
        """
        if isinstance(q, bool) or not isinstance(q, int | float) or not 0 <= q <= 1:
            raise InvalidValueError(f"q={q!r}: must be a number from 0 to 1")
        if not self.total:
            return math.nan
        rank, low = q * self.total, 0.0
        for bound, count in zip(BOUNDS, self.counts, strict=False):
            if count and rank <= count:
                return low + (bound - low) * max(0.0, rank) / count
            rank -= count
            low = bound
        return BOUNDS[-1]


NO_LATENESS: Final = Lateness()


@dataclass(frozen=True, slots=True)
class Dispatches:
    """*sent* entries reached the broker; *failed* ones were given back or became dead letters.

    *lateness* is that of the sent entries, by the server's clock.
    """

    sent: int = 0
    failed: int = 0
    lateness: Lateness = NO_LATENESS

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
