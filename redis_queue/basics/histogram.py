"""Histogram: numbers of durations by size."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from redis_queue.errors import InvalidValueError

BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 3600.0)
"""Upper bounds of the buckets of a :class:`Histogram` in seconds, each included; a last bucket holds the rest."""

BUCKETS: Final = len(BOUNDS) + 1

_BOUNDS_MS: Final = tuple(round(bound * 1000) for bound in BOUNDS)


@dataclass(frozen=True, slots=True)
class Histogram:
    """The number of durations in each bucket, and their sum in seconds.

    ``counts[n]`` counts those above the previous bound and not above ``BOUNDS[n]``; the last bucket has no bound.
    """

    counts: tuple[int, ...] = (0,) * BUCKETS
    seconds: float = 0.0

    def __add__(self, other: Histogram) -> Histogram:
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Histogram(counts, self.seconds + other.seconds)

    @classmethod
    def of(cls, durations_ms: Iterable[float]) -> Histogram:
        """Sort durations in ms into the buckets."""
        counts, total = [0] * BUCKETS, 0.0
        for duration in durations_ms:
            counts[bisect_left(_BOUNDS_MS, duration)] += 1
            total += duration
        return cls(tuple(counts), total / 1000)

    @property
    def total(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """Estimate the seconds that a part *q* (0 to 1) of the durations did not exceed, as Prometheus does.

        Linear within a bucket; at most the greatest bound; NaN without durations. Raises InvalidValueError for an
        invalid *q*.
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


NO_TIMES: Final = Histogram()
