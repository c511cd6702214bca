"""History of tasks: counts and times of each task and queue in a time span, and their curves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from redis_queue.basics.histogram import NO_TIMES
from redis_queue.errors import InvalidValueError
from redis_queue.monitor.model import Period, Series, Tally
from redis_queue.operate.access import Access


class Span(NamedTuple):
    """A time span: *minutes* long; its curves have *points* of *each* minutes or hours."""

    title: str
    minutes: int
    points: int
    by_hour: bool = False
    each: int = 1


SPANS: Final = {
    "15m": Span("15 minutes", 15, 15),
    "1h": Span("1 hour", 60, 60),
    "6h": Span("6 hours", 360, 72, each=5),
    "2d": Span("2 days", 2880, 48, by_hour=True),
    "30d": Span("30 days", 43_200, 120, by_hour=True, each=6),
    "90d": Span("90 days", 129_600, 90, by_hour=True, each=24),
}

ROSE_BY: Final = 2.0
"""Factor by which the share of failures rises before a series is marked."""

MIN_FAILURES: Final = 3


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """What happened to one task of one queue in a span, and counts of the span *before* it (None: too long ago)."""

    series: Series
    tally: Tally
    before: Tally | None = None

    @property
    def failing(self) -> float:
        """The share of executed runs that failed."""
        return _share(self.tally)

    @property
    def rose(self) -> bool:
        """Whether tasks fail more often than in the span before: a deploy may have broken them."""
        if self.before is None or not self.before.executed or self.tally.failed < MIN_FAILURES:
            return False
        return self.failing > ROSE_BY * _share(self.before)


class Quantiles(NamedTuple):
    """A quantile of durations in seconds, such as p95, at each time and of the *whole* span; None without a run."""

    name: str
    values: Sequence[float | None]
    whole: float | None


@dataclass(frozen=True, slots=True)
class Curves:
    """Values at *times*: counts, and the p50, p95 and p99 of durations."""

    times: Sequence[datetime]
    counts: Sequence[tuple[str, Sequence[int]]]
    duration: Sequence[Quantiles]
    waiting: Sequence[Quantiles]
    lateness: Sequence[Quantiles]


def table(access: Access, span: str, *, task: str = "", queue: str = "") -> list[HistoryRow]:
    """Return a row for each series with runs in *span* whose names contain these parts, most executed first.

    Raises InvalidValueError for an unknown span, and StoreError.
    """
    minutes = _span(span).minutes
    history = access.monitor.history
    now = history.totals(minutes)
    before = history.totals(minutes, before=minutes, times=False) if minutes <= SPANS["2d"].minutes else None
    rows = [
        HistoryRow(series, tally, None if before is None else before.get(series, Tally()))
        for series, tally in now.items()
        if task in series.task and queue in series.queue
    ]
    return sorted(rows, key=lambda row: (-row.tally.executed, row.series))


def curves(access: Access, span: str, series: Collection[Series] | None = None) -> Curves:
    """Return the curves of some *series* together, or of all, in *span*. Raises InvalidValueError and StoreError."""
    chosen, history = _span(span), access.monitor.history
    count = chosen.points * chosen.each
    periods = history.hours(count, series) if chosen.by_hour else history.minutes(count, series)
    points = [_sum(periods[start : start + chosen.each]) for start in range(0, count, chosen.each)]
    tallies = [point.tally for point in points]
    counts = {
        "succeeded": [tally.executed - tally.failed - tally.retried for tally in tallies],
        "failed": [tally.failed for tally in tallies],
        "retried": [tally.retried for tally in tallies],
        "revoked": [tally.revoked for tally in tallies],
    }
    return Curves(
        [point.at for point in points],
        list(counts.items()),
        *(_quantiles(tallies, name) for name in ("duration", "waiting", "lateness")),
    )


def _quantiles(tallies: Sequence[Tally], name: str) -> list[Quantiles]:
    times = [getattr(tally, name) for tally in tallies]
    # The whole span is the last one.
    times.append(sum(times, NO_TIMES))
    shares = {
        f"p{share}": [found.quantile(share / 100) if found else None for found in times] for share in (50, 95, 99)
    }
    return [Quantiles(share, values[:-1], values[-1]) for share, values in shares.items()]


def _sum(periods: Sequence[Period]) -> Period:
    return Period(periods[0].at, sum((period.tally for period in periods), Tally()))


def _share(tally: Tally) -> float:
    return tally.failed / tally.executed if tally.executed else 0.0


def _span(name: str) -> Span:
    found = SPANS.get(name)
    if found is None:
        raise InvalidValueError(f"span={name!r}: must be one of {', '.join(SPANS)}")
    return found
