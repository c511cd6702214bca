"""The screen of ``redis-queue top`` as lines of text, and the rates of queues between two samples."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final, Literal, get_args

from redis_queue.basics.options import counted
from redis_queue.basics.times import span_text
from redis_queue.cli.output import encodable, harmless, moment, zone_name
from redis_queue.operate.queue_row import CeleryQueueRow, Count, Overview, QueueRow
from redis_queue.store.keys import Kind

QueueKey = tuple[Kind | Literal["celery"], str]

Sort = Literal["backlog", "name", "dead", "rate"]
SORTS: Final[tuple[Sort, ...]] = get_args(Sort)

COLUMNS: Final = (
    ("kind", 6),
    ("ready", 6),
    ("delayed", 7),
    ("flight", 6),
    ("dead", 6),
    ("oldest", 6),
    ("put/s", 6),
    ("acked/s", 7),
    ("again/s", 7),
)
"""Heads of the numbers and their widths, with a space before each; the name gets the rest of the line."""

NARROWEST: Final = 80
MAX_NAMES: Final = 5
"""Maximum number of queues that a line below the table names."""

THOUSAND: Final = 1000
EXACT: Final = 10_000
"""Below this a number is shown with all its digits."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages per second between two overviews."""

    put: float
    acked: float
    redelivered: float


COUNTS: Final = tuple(item.name for item in fields(Rates))
"""The counts of a queue of which there are rates."""


def rates(before: Overview | None, now: Overview) -> dict[QueueKey, Rates]:
    """Return the rates of each queue in both overviews; at least 0, even if a queue was emptied and created again."""
    seconds = (now.at - before.at).total_seconds() if before is not None else 0.0
    if before is None or seconds <= 0:
        return {}
    earlier = {(row.kind, row.name): row for row in before.queues if not row.error}
    return {
        (row.kind, row.name): Rates(*(max(0, getattr(row, count) - getattr(then, count)) / seconds for count in COUNTS))
        for row in now.queues
        if not row.error and (then := earlier.get((row.kind, row.name))) is not None
    }


def rates_of(rows: Iterable[CeleryQueueRow]) -> dict[QueueKey, Rates]:
    """Return the rates of Celery's queues that workers report: means of five minutes."""
    return {
        ("celery", row.name): Rates((row.put_per_minute or 0.0) / 60, row.executed_per_minute / 60, 0.0)
        for row in rows
        if row.executed_per_minute is not None and not row.error
    }


def draw(
    place: str,
    overview: Overview | None,
    speeds: Mapping[QueueKey, Rates],
    sort: Sort,
    *,
    error: str = "",
    width: int = NARROWEST,
    height: int | None = None,
) -> list[str]:
    """Return the lines, none longer than *width* cells (80 at least) and no more than *height* of them."""
    width = max(width, NARROWEST)
    if overview is None:
        return [_fit(harmless(error), width).rstrip()]
    below = _below(overview)
    title = f"{counted(len(overview.queues), 'queue')} at {moment(overview.at)} {zone_name(overview.at)} in {place}"
    head = [harmless(title), _totals(overview, speeds), *([harmless(error)] if error else []), ""]
    rows = in_order(overview.queues, speeds, sort)
    # The two lines are the column heads and the number of hidden queues.
    room = len(rows) if height is None else max(1, height - len(head) - len(below) - 2)
    name = width - sum(1 + size for _, size in COLUMNS)
    shown = [_line(_cells(row, overview.at, speeds.get((row.kind, row.name))), name) for row in rows[:room]]
    hidden = [f"and {counted(len(rows) - room, 'more queue')}"] if rows[room:] else []
    lines = [*head, _line(["queue", *(title for title, _ in COLUMNS)], name), *shown, *hidden, *below]
    return [_fit(line, width).rstrip() for line in lines][:height]


def in_order(rows: Sequence[QueueRow], speeds: Mapping[QueueKey, Rates], sort: Sort) -> list[QueueRow]:
    """Return *rows* in the order of *sort*, equal ones by name."""

    def key(row: QueueRow) -> tuple[float, float, str, str]:
        speed = speeds.get((row.kind, row.name))
        rate = speed.put + speed.acked if speed else 0.0
        first, second = {
            "backlog": (row.ready, row.delayed),
            "name": (0, 0),
            "dead": (row.dead, row.ready),
            "rate": (rate, row.ready),
        }[sort]
        return -first, -second, row.name, row.kind

    return sorted(rows, key=key)


def _totals(overview: Overview, speeds: Mapping[QueueKey, Rates]) -> str:
    counts: tuple[Count, ...] = ("ready", "delayed", "in_flight", "dead", "quarantined")
    parts = [f"{count.replace('_', ' ')} {short(overview.total(count))}" for count in counts]
    if speeds:
        parts.append(f"put {short(sum(speed.put for speed in speeds.values()))}/s")
        parts.append(f"acked {short(sum(speed.acked for speed in speeds.values()))}/s")
    return "  ".join(parts)


def _below(overview: Overview) -> list[str]:
    dues = sorted((row for row in overview.queues if row.next_due), key=lambda row: row.next_due or overview.at)
    notes = (
        ("next due", [f"{row.name} {_until(row.next_due, overview.at)}" for row in dues]),
        ("paused", [row.name for row in overview.queues if row.paused]),
        ("error", [f"{row.kind}:{row.name}: {row.error}" for row in overview.queues if row.error]),
    )
    lines = []
    for title, names in notes:
        if names:
            more = f" and {len(names) - MAX_NAMES:,} more" if names[MAX_NAMES:] else ""
            lines.append(f"{title}: {', '.join(map(harmless, names[:MAX_NAMES]))}{more}")
    return ["", *lines] if lines else []


def _cells(row: QueueRow, now: datetime, speed: Rates | None) -> list[str]:
    if row.error:
        return [row.name, row.kind, *["-"] * (len(COLUMNS) - 1)]
    counts = [short(count) for count in (row.ready, row.delayed, row.in_flight, row.dead)]
    oldest = span_text(None if row.oldest_at is None else now - row.oldest_at, parts=1)
    moving = ["-"] * 3 if speed is None else [short(value) for value in (speed.put, speed.acked, speed.redelivered)]
    return [row.name, row.kind, *counts, oldest, *moving]


def _line(cells: Sequence[str], name: int) -> str:
    numbers = (f" {cell:>{size}}" for cell, (_, size) in zip(cells[1:], COLUMNS, strict=True))
    return _fit(harmless(cells[0]), name) + "".join(numbers)


def short(value: float) -> str:
    """Return a number in at most six characters: 7, 0.3, 9,999, 12.3k, 4.5M."""
    if value == int(value) and value < EXACT:
        return f"{int(value):,}"
    if value < THOUSAND:
        return f"{value:.1f}"
    if value < EXACT:
        return f"{value:,.0f}"
    for unit in "kMGT":
        value /= THOUSAND
        # A value that rounds up to 1000 gets the next unit.
        if value < THOUSAND - 0.5:
            return f"{value:.1f}{unit}" if value < THOUSAND / 10 else f"{value:.0f}{unit}"
    return "many"


def _until(due: datetime | None, now: datetime) -> str:
    if due is None or due <= now:
        return "now"
    return f"in {span_text(due - now)}"


def _fit(text: str, width: int) -> str:
    """Return *text* in exactly *width* cells of a terminal, cut with a mark or padded."""
    if _cells_of(text) <= width:
        return text + " " * (width - _cells_of(text))
    mark = encodable("…") if len(encodable("…")) == 1 else "~"
    kept, used = "", 0
    for char in text:
        used += _cells_of(char)
        if used > width - 1:
            break
        kept += char
    return kept + mark + " " * (width - _cells_of(kept) - 1)


def _cells_of(text: str) -> int:
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)
