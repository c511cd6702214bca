"""Histogram: durations, sorted into buckets so narrow that quantiles are known to 10 %."""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from operator import add
from typing import Final

from redis_queue.errors import InvalidValueError

_STEPS: Final = ("1", "1.2", "1.45", "1.75", "2.1", "2.5", "3", "3.6", "4.2", "5", "6", "7.1", "8.5")
"""Bounds of the buckets of one decade: each is at most 1.21 times the one before, so no bucket is off by 10 %."""

_DECADES: Final = range(-3, 9)

LIMITS: Final = (*(float(f"{step}e{decade}") for decade in _DECADES for step in _STEPS), 1e9)
"""Upper bounds of the buckets in seconds, each included: 1 ms to 31 years. A last bucket holds the rest."""

BUCKETS: Final = len(LIMITS) + 1

MARKS: Final = "!#$"
"""Characters that tell apart the histograms in one text. A version with other buckets needs other characters."""

STORED: Final = re.compile(r"([!#$])(\d{1,18})<(\d{1,15})>(\d{1,15})((?:@\d{1,3}(?:,\d{1,15})+)+)")
"""A stored histogram: a mark, the sum in ms, minimum and maximum in microseconds, then the runs of buckets.

A run is the number of its first bucket and the counts of this bucket and those after it. The script
``includes/tallies.lua`` adds up such texts.
"""


@dataclass(frozen=True, slots=True)
class Histogram:
    """The number of durations in each bucket, and their sum, minimum and maximum in seconds.

    ``counts[n]`` counts those above ``LIMITS[n - 1]`` and not above ``LIMITS[n]``.
    """

    counts: tuple[int, ...] = (0,) * BUCKETS
    seconds: float = 0.0
    least: float = math.inf
    most: float = 0.0

    def __add__(self, other: Histogram) -> Histogram:
        if other is NO_TIMES or not other:
            return self
        counts = tuple(map(add, self.counts, other.counts))
        least, most = min(self.least, other.least), max(self.most, other.most)
        return Histogram(counts, self.seconds + other.seconds, least, most)

    def __bool__(self) -> bool:
        return any(self.counts)

    @classmethod
    def of(cls, durations_ms: Iterable[float]) -> Histogram:
        """Sort durations in ms into the buckets."""
        found = Durations()
        for duration in durations_ms:
            found.add(duration / 1000)
        return found.sum()

    @property
    def total(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """Estimate the seconds that a part *q* (0 to 1) of the durations did not exceed.

        It is within 10 % of that duration, or 1 ms, and never below the minimum or above the maximum. NaN without
        durations. Raises InvalidValueError for an invalid *q*.
        """
        if isinstance(q, bool) or not isinstance(q, int | float) or not 0 <= q <= 1:
            raise InvalidValueError(f"q={q!r}: must be a number from 0 to 1")
        sums = list(itertools.accumulate(self.counts))
        rank = q * sums[-1]
        if rank <= 1:
            return self.least if sums[-1] else math.nan
        if rank > sums[-1] - 1:
            return self.most
        number = bisect_left(sums, rank)
        low = max(self.least, LIMITS[number - 1] if number else 0.0)
        high = min(self.most, LIMITS[number] if number < len(LIMITS) else math.inf)
        # Equally far from both bounds, in relation to them.
        return min(max(low, 2 * low * high / (low + high)), high) if low else high

    def count(self, bound: float) -> int:
        """Return how many durations are not above *bound*, in seconds; exact for one of :data:`LIMITS`."""
        return sum(self.counts[: bisect_left(LIMITS, bound) + 1])

    def text(self, mark: str = MARKS[0]) -> str:
        """Return the histogram as it is stored, see :data:`STORED`; "" without durations."""
        if not self:
            return ""
        head = f"{mark}{_digits(self.seconds * 1e3)}<{_digits(self.least * 1e6)}>{_digits(self.most * 1e6)}"
        parts, gap = [head], BUCKETS
        for number, count in enumerate(self.counts):
            if count:
                # A gap of one bucket is shorter than a new run.
                parts.append(f"@{number},{count}" if gap > 1 else f"{',0' * gap},{count}")
                gap = 0
            else:
                gap += 1
        return "".join(parts)


NO_TIMES: Final = Histogram()


class Durations:
    """Adds up durations and stored histograms."""

    __slots__ = ("counts", "least", "most", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.seconds = self.most = 0.0
        self.least = math.inf

    def add(self, seconds: float) -> None:
        """Add one duration; a negative one is 0."""
        # This runs for each task: comparisons take half the time of min() and max().
        if seconds < 0.0:  # noqa: PLR1730
            # The clocks of two hosts may differ.
            seconds = 0.0
        self.seconds += seconds
        if seconds < self.least:  # noqa: PLR1730
            self.least = seconds
        if seconds > self.most:  # noqa: PLR1730
            self.most = seconds
        self.counts[bisect_left(LIMITS, seconds)] += 1

    def read(self, sum_ms: str, least: str, most: str, runs: str) -> None:
        """Add the parts of a stored histogram; one with more buckets is ignored."""
        counts = self.counts.copy()
        for run in runs[1:].split("@"):
            first, *found = run.split(",")
            start, end = int(first), int(first) + len(found)
            if end > BUCKETS:
                return
            counts[start:end] = map(add, counts[start:end], map(int, found))
        self.counts, self.seconds = counts, self.seconds + int(sum_ms) / 1e3
        self.least, self.most = min(self.least, int(least) / 1e6), max(self.most, int(most) / 1e6)

    def sum(self) -> Histogram:
        """Return what was added so far."""
        counts = tuple(self.counts)
        # Without the noise of sums of fractions.
        return Histogram(counts, round(self.seconds, 6), self.least, self.most) if any(counts) else NO_TIMES


def read_histograms(texts: Iterable[bytes]) -> tuple[Histogram, ...]:
    """Return the sum of the histograms in *texts* for each of :data:`MARKS`; other bytes are ignored."""
    found = {mark: Durations() for mark in MARKS}
    for text in texts:
        # Reading numbers from bytes takes longer.
        for mark, *parts in STORED.findall(text.decode("latin-1")):
            found[mark].read(*parts)
    return tuple(durations.sum() for durations in found.values())


def _digits(number: float) -> int:
    return min(max(0, round(number)), 10**15 - 1)
