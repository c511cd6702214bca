"""The forecast page: entries due per time window, by task."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from flask import Blueprint, render_template

from redis_queue.operate.forecast import by_task
from redis_queue.web import request_args
from redis_queue.web.charts import level
from redis_queue.web.context import delay_queues

pages = Blueprint("forecast", __name__)

MAX_TASKS: Final = 12


class HeatMap(NamedTuple):
    """Layout of a heat map: rows and columns of windows, each *width* long."""

    title: str
    step: str
    rows: int
    columns: int
    width: timedelta


SPANS: Final = {
    "hour": HeatMap("next hour", "minute", 6, 10, timedelta(minutes=1)),
    "day": HeatMap("next day", "quarter of an hour", 12, 8, timedelta(minutes=15)),
    "week": HeatMap("next week", "hour", 14, 12, timedelta(hours=1)),
    "month": HeatMap("next 30 days", "3 hours", 30, 8, timedelta(hours=3)),
}


@pages.get("/forecast")
def show() -> str:
    """Show the heat map of a DelayQueue, and its tasks."""
    request_args.allow("span", "queue")
    chosen = request_args.choice("span", SPANS, "day")
    span = SPANS[chosen]
    queue, names = delay_queues(request_args.text("queue", exact=True))
    count = span.rows * span.columns
    windows = queue.forecast(count, width=span.width)
    start = windows[0][0]
    totals = [
        (windows[first][0], sum(number for _, number in windows[first : first + span.columns]))
        for first in range(0, count, span.columns)
    ]
    tasks = by_task(queue, totals, span.width * span.columns)
    return render_template(
        "forecast.html",
        queue=queue,
        names=names,
        spans=SPANS,
        chosen=chosen,
        rows=_rows(windows, span),
        tasks=_tasks(tasks.tasks, len(totals)),
        starts=[at for at, _ in totals],
        exact=tasks.exact,
        is_searchable=is_searchable,
        total=sum(number for _, number in windows),
        later=queue.count(due_after=start + span.width * count),
        columns=[span.width * column for column in range(span.columns)],
    )


def _rows(windows: list[tuple[datetime, int]], span: HeatMap) -> list[list[dict[str, Any]]]:
    most = max(number for _, number in windows)
    cells = [
        {"at": at, "until": at + span.width, "count": number, "level": level(number, most), "first": not position}
        for position, (at, number) in enumerate(windows)
    ]
    return [cells[row * span.columns : (row + 1) * span.columns] for row in range(span.rows)]


def is_searchable(task: str) -> bool:
    """Return whether the list of entries accepts *task* as a search; names of tasks may be any text."""
    return task.isprintable() and task == task.strip() and 0 < len(task) <= request_args.MAX_TEXT


def _tasks(tasks: Any, windows: int) -> list[tuple[str, list[tuple[int, int]], int]]:
    most = max((number for _, counts in tasks for number in counts), default=0)
    rows = list(tasks[:MAX_TASKS])
    rest = [sum(counts[window] for _, counts in tasks[MAX_TASKS:]) for window in range(windows)]
    if any(rest):
        rows.append(("(others)", rest))
    return [(name, [(number, level(number, most)) for number in counts], sum(counts)) for name, counts in rows]
