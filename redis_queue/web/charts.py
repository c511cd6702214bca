"""Charts: data and summaries of lines, levels of a heat map, and what dispatchers sent from a DelayQueue."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Final

from redis_queue.basics.times import span_text
from redis_queue.catalog import open_as
from redis_queue.delay.model import Dispatched
from redis_queue.delay.queue import DelayQueue
from redis_queue.monitor.model import ReleaseRow
from redis_queue.operate.history import Quantiles
from redis_queue.operate.queue_row import BROKEN
from redis_queue.store.registry import RegistryRow
from redis_queue.store.settings import Settings
from redis_queue.web.context import context
from redis_queue.web.formatting import harmless

LEVELS: Final = 8

TONES: Final = {
    "succeeded": "good",
    "failed": "bad",
    "refused": "bad",
    "retried": "warn",
    "revoked": "soft",
    "p50": "main",
    "p95": "warn",
    "p99": "bad",
    "worst": "late",
}
"""Colours of names, as in style.css; other names get "main", then "late"."""

SECONDS: Final = "s"

_Value = float | int | None


@dataclass(frozen=True, slots=True)
class Line:
    """A named series of a chart; None where it has no value. *whole*: the duration of the whole span."""

    name: str
    values: Sequence[_Value]
    tone: str
    whole: _Value = None

    def text(self, number: int, unit: str) -> str:
        """Return one value as text; "-" for None."""
        return _text(self.values[number], unit)

    def summary(self, unit: str) -> str:
        """Return the sum of counts, or the duration of the whole span, by default the longest one."""
        known = [value for value in self.values if value is not None]
        if unit != SECONDS:
            return _text(sum(known), unit)
        return _text(max(known, default=None) if self.whole is None else self.whole, unit)


def lines(series: Iterable[tuple[str, Sequence[_Value]] | Quantiles]) -> list[Line]:
    """Return the lines of a chart, with a tone for each; not a number becomes None."""
    return [
        Line(
            name,
            [None if value is None or math.isnan(value) else value for value in values],
            TONES.get(name, ("main", "late", "good", "warn")[number % 4]),
            *whole,
        )
        for number, (name, values, *whole) in enumerate(series)
    ]


def chart_data(
    found: Iterable[Line], unit: str, times: Iterable[datetime], bars: bool = False, marks: Iterable[ReleaseRow] = ()
) -> str:
    """Return the data that static/chart.js draws, as JSON; *marks* are lines at the first reports of releases."""
    return json.dumps(
        {
            "unit": unit,
            "bars": bars,
            "marks": [[round(row.first_at.timestamp()), harmless(row.release)] for row in marks],
            "times": [round(at.timestamp()) for at in times],
            "series": [{"name": line.name, "tone": line.tone, "values": _short(line.values)} for line in found],
        },
        separators=(",", ":"),
    )


def spark_points(values: Sequence[float], width: int = 100, height: int = 24) -> str:
    """Return the points of a curve through *values* for an SVG of this size; the largest value reaches the top."""
    top = max(values, default=0) or 1
    step = width / max(len(values) - 1, 1)
    return " ".join(
        f"{step * number:.1f},{height - 1 - (height - 2) * value / top:.1f}" for number, value in enumerate(values)
    )


def shares(values: Iterable[float], width: int = 1000, least: int = 8) -> list[tuple[int, int]]:
    """Return the begin and the width of the part of each of *values* in a bar of this *width*; none is invisible."""
    known = list(values)
    widths = [max(least, width * value / (sum(known) or 1)) for value in known]
    ends = [round(width * end / sum(widths)) for end in accumulate(widths)]
    return [(start, end - start) for start, end in pairwise([0, *ends])]


def level(count: int, most: int) -> int:
    """Return 0 for nothing, else 1 to :data:`LEVELS` by the logarithm of *count* against *most*."""
    if count <= 0:
        return 0
    if most <= 1:
        return LEVELS
    return min(LEVELS, 1 + int((LEVELS - 1) * math.log(count) / math.log(most) + 1e-9))


def _text(value: _Value, unit: str) -> str:
    if value is None:
        return "-"
    return span_text(value, parts=1) if unit == SECONDS else f"{value:,.0f}"


def _short(values: Iterable[_Value]) -> list[_Value]:
    # Six digits are more than a screen shows.
    return [value if value is None or isinstance(value, int) else float(f"{value:.6g}") for value in values]


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
