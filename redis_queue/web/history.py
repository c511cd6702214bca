"""The page of the history: counts and times of tasks in a time span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from flask import Blueprint, abort

from redis_queue.basics.options import counted
from redis_queue.monitor.model import Series
from redis_queue.operate.history import SPANS, HistoryRow, compare, curves, table
from redis_queue.web import request_args
from redis_queue.web.context import context, page
from redis_queue.web.request_args import ROWS
from redis_queue.web.search import task_names

pages = Blueprint("history", __name__)

MAX_CURVES: Final = 20
"""Maximum number of series whose curves are added up, if some are searched."""

SORTS: Final = {
    "executed": lambda row: -row.tally.executed,
    "failed": lambda row: -row.tally.failed,
    "failing": lambda row: -row.failing,
    "duration": lambda row: -_p95(row.tally.duration),
    "waiting": lambda row: -_p95(row.tally.waiting),
    "task": lambda row: row.series,
}


@pages.get("/history")
def show() -> str:
    """Show the tasks of a time span, or before and after a release, and the curves of one of them or of all."""
    request_args.allow("span", "task", "queue", "sort", "one", "of", "release")
    span = request_args.choice("span", SPANS, "1h")
    sort = request_args.choice("sort", SORTS, "executed")
    task, queue = request_args.text("task"), request_args.text("queue")
    one, of = request_args.text("one", exact=True), request_args.text("of", exact=True)
    if (one is None) != (of is None):
        abort(400, "one and of: must be given together: the names of a task and its queue.")
    release = request_args.text("release", exact=True)
    access = context().access
    compared = None if release is None else compare(access, span, release, task=task or "", queue=queue or "")
    found = table(access, span, task=task or "", queue=queue or "") if task or queue or compared is None else []
    chosen = [Series(one, of)] if one and of else [row.series for row in found[:MAX_CURVES]] if task or queue else None
    rows: Sequence[HistoryRow] = sorted(found, key=SORTS[sort]) if compared is None else compared.rows
    link: dict[str, Any] = {"task": task, "queue": queue, "sort": sort, "one": one, "of": of, "release": release}
    return page(
        "history.html",
        rows=rows[:ROWS],
        more=max(0, len(rows) - ROWS),
        curves=curves(access, span, chosen),
        curves_of=curves_of(chosen, len(found)),
        compared=compared,
        chosen_release=release,
        releases=access.monitor.releases(),
        one=one,
        of=of,
        spans=[(name, found.title) for name, found in SPANS.items()],
        span=span,
        sort=sort,
        search={"task": task, "queue": queue},
        link={name: value for name, value in link.items() if value is not None},
        names=task_names(),
    )


def curves_of(chosen: Sequence[Series] | None, count: int) -> str:
    """Return whose runs the curves show, if *count* series match the search."""
    if chosen is None:
        return "all tasks"
    if len(chosen) == 1:
        return f"{chosen[0].task} in {chosen[0].queue}"
    most = f"the {MAX_CURVES} with most runs of " if count > MAX_CURVES else ""
    return f"{most}{counted(count, 'task')} found"


def _p95(times: Any) -> float:
    found: float = times.quantile(0.95) if times.total else -1.0
    return found
