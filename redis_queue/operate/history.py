"""History of tasks: counts and times of each task and queue in a time span, and their curves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from redis_queue.basics.histogram import NO_TIMES
from redis_queue.basics.options import did_you_mean
from redis_queue.basics.times import from_ms, to_ms
from redis_queue.errors import InvalidValueError
from redis_queue.monitor.history import MAX_BY_MINUTE, MAX_HOURS, MAX_MINUTES
from redis_queue.monitor.model import Period, ReleaseRow, Series, Tally
from redis_queue.monitor.rows import MAX_RELEASE
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

SLOWER_BY: Final = 1.5
"""Factor by which the p95 of the run time rises before a series is slower: each is known to 10 %."""

MAX_MARKS: Final = 20
"""Maximum number of releases that a chart marks, the last ones."""


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

    @property
    def slower(self) -> float:
        """The factor by which the p95 of the run time rose; 1.0 if it is not known, or did not rise enough to tell."""
        now, then = (tally.usual(0.95) for tally in (self.tally, self.before or Tally()))
        return now / then if now and then and now >= SLOWER_BY * then else 1.0

    @property
    def verdict(self) -> str:
        """What changed since the span before: "fails more often", "slower", "new", "no runs"; "" for neither."""
        if self.before is None:
            return ""
        if self.rose:
            return "fails more often"
        if not self.before.executed or not self.tally.executed:
            return "new" if self.tally.executed else "no runs"
        return "slower" if self.slower > 1 else ""

    @property
    def worse(self) -> tuple[bool, float, float, int]:
        """Key to sort by what got worse most."""
        before = self.before or Tally()
        counts = self.rose or (not before.executed and self.tally.failed >= MIN_FAILURES)
        return self.rose, self.failing - _share(before) if counts else 0.0, self.slower, self.tally.executed


@dataclass(frozen=True, slots=True)
class Comparison:
    """The *rows* of tasks after the first report of a *release*, and in the time of the same length before it.

    What got worse comes first. Both have *minutes*: full hours if that is more than two hours, and full days if it is
    more than two days, without the one of the deploy, but with what there is of the current one. *since*: when the time
    after it begins. *known_before*: whether anything ran in the time before.
    """

    release: ReleaseRow
    since: datetime
    minutes: int
    rows: Sequence[HistoryRow]
    known_before: bool


class Quantiles(NamedTuple):
    """A quantile of durations in seconds, such as p95, at each time and of the *whole* span; None without a run."""

    name: str
    values: Sequence[float | None]
    whole: float | None


@dataclass(frozen=True, slots=True)
class Curves:
    """Values at *times*: counts, and the p50, p95 and p99 of durations. *marks*: when a release was first reported."""

    times: Sequence[datetime]
    counts: Sequence[tuple[str, Sequence[int]]]
    duration: Sequence[Quantiles]
    waiting: Sequence[Quantiles]
    lateness: Sequence[Quantiles]
    marks: Sequence[ReleaseRow] = ()


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
        _quantiles(tallies, "duration"),
        _quantiles(tallies, "waiting"),
        _quantiles(tallies, "lateness"),
        [row for row in access.monitor.releases() if row.first_at >= points[0].at][:MAX_MARKS],
    )


def compare(access: Access, span: str, release: str, *, task: str = "", queue: str = "") -> Comparison:
    """Compare the tasks before and after a release: the time since its first report, at most *span*.

    Raises InvalidValueError for an unknown span or release, and StoreError.
    """
    most, history = _span(span).minutes, access.monitor.history
    known = {row.release: row for row in access.monitor.releases()}
    chosen = known.get(release)
    if chosen is None:
        hint = did_you_mean(release, known) if known else "no worker has reported one"
        raise InvalidValueError(f"release={release[:MAX_RELEASE]!r}: {hint}")
    now, first = (to_ms(at) // 60_000 for at in (access.inspector.now(), chosen.first_at))
    # Clocks may step back.
    ends, begins, minutes = _window(now, min(first, now), most)

    def counts(start: int, last: int) -> dict[Series, Tally]:
        # The history keeps 90 days.
        return history.totals(last - start + 1, before=now - last) if now - last <= MAX_HOURS * 60 else {}

    before, after = counts(ends - minutes, ends - 1), counts(begins, min(now, begins + minutes - 1))
    rows = [
        HistoryRow(series, after.get(series, Tally()), before.get(series, Tally()) if before else None)
        for series in {**before, **after}
        if task in series.task and queue in series.queue
    ]
    rows.sort(key=lambda row: row.series)
    rows.sort(key=lambda row: row.worse, reverse=True)
    return Comparison(chosen, from_ms(begins * 60_000), minutes, rows, bool(before))


def _window(now: int, first: int, most: int) -> tuple[int, int, int]:
    """Return the minutes at which the time before a deploy in the minute *first* ends and that after it begins.

    Also return their length. In minutes, that of the deploy is after it; in hours or days, it is in neither.
    """
    minutes = min(most, now - first + 1)
    if minutes <= MAX_BY_MINUTE and now - first + minutes < MAX_MINUTES:
        return first, first, max(1, minutes)
    each = 60 if minutes <= MAX_MINUTES else 1440
    step = first // each
    return step * each, (step + 1) * each, each * max(1, min(most // each, now // each - step))


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
