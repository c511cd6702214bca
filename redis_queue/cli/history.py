"""``redis-queue history``: counts and times of tasks in a time span."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import click

from redis_queue.basics.histogram import Histogram
from redis_queue.basics.times import span_text
from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access
from redis_queue.cli.listing import Column, Row, show_rows
from redis_queue.cli.output import harmless, wants_json
from redis_queue.monitor.model import Tally
from redis_queue.operate.access import Access
from redis_queue.operate.history import SPANS, Comparison, HistoryRow, compare, table

SHARES: Final = (50, 95, 99)

COLUMNS: Final[dict[str, Column]] = {
    "task": "task",
    "queue": "queue",
    "runs": "executed",
    "failed": "failed",
    "retried": "retried",
    "revoked": "revoked",
    "time": lambda row: _p95(row["duration"]),
    "wait": lambda row: _p95(row["waiting"]),
    "late": lambda row: _p95(row["lateness"]),
    "": lambda row: "worse" if row["rose"] else "",
}


def _p95(times: dict[str, float] | None) -> str:
    return "-" if times is None else span_text(times["p95"], parts=1)


@click.command(cls=StoreCommand)
@click.option("--span", type=click.Choice(list(SPANS)), default="1h", show_default=True, help="The last hours or days.")
@options.task_part
@click.option("--queue", default="", help="Only Celery queues whose names contain this text.")
@click.option("--release", help="Compare the time since this release was first reported with the same time before it.")
@options.limit(50)
@options.as_json
@with_access
def history(access: Access, *, span: str, task_part: str | None, queue: str, release: str | None, limit: int) -> None:
    """Show what tasks did: runs, failures, and how long they ran and waited (p95).

    "worse" marks a task that fails more often than in the same time before. With --release, what got worse comes first.

    Example: redis-queue history --span 6h
    """
    if release is not None:
        _show_comparison(access, compare(access, span, release, task=task_part or "", queue=queue), limit)
        return
    rows = table(access, span, task=task_part or "", queue=queue)[:limit]
    show_rows(
        access,
        {"span": span, "tasks": [_document(row) for row in rows]},
        COLUMNS,
        keep=list(COLUMNS)[2:],
        nothing="no task ended in this time",
        more=len(rows) == limit,
    )


def _show_comparison(access: Access, found: Comparison, limit: int) -> None:
    rows = [
        {**row.series._asdict(), "before": _side(row.before), "after": _side(row.tally), "change": row.verdict}
        for row in found.rows[:limit]
    ]
    document = {"release": asdict(found.release), "since": found.since, "minutes": found.minutes, "tasks": rows}
    if not wants_json():
        length = span_text(found.minutes * 60)
        before = f"{length} before" if found.known_before else "no data from before"
        click.echo(harmless(f"{length} after release {found.release.release} was first reported; {before}"))
    show_rows(
        access,
        document,
        COMPARISON,
        keep=list(COMPARISON)[2:],
        below=("queue", "p50"),
        nothing="no task ended in this time",
        more=len(found.rows) > limit,
    )


def _side(tally: Tally | None) -> dict[str, Any] | None:
    if tally is None:
        return None
    counts = {name: getattr(tally, name) for name in ("executed", "failed")}
    return {**counts, "duration": _shares(tally.duration)}


def _change(of: Callable[[dict[str, Any]], str]) -> Callable[[Row], str]:
    return lambda row: f"{of(row['before']) if row['before'] else '?'} > {of(row['after'])}"


def _failing(side: dict[str, Any]) -> str:
    return f"{100 * side['failed'] / side['executed']:.1f} %" if side["executed"] else "-"


def _duration(share: str) -> Callable[[dict[str, Any]], str]:
    return lambda side: "-" if side["duration"] is None else span_text(side["duration"][share], parts=1)


COMPARISON: Final[dict[str, Column]] = {
    "task": "task",
    "queue": "queue",
    "runs": _change(lambda side: str(side["executed"])),
    "failing": _change(_failing),
    "p50": _change(_duration("p50")),
    "p95": _change(_duration("p95")),
    "": "change",
}
"""Columns of a comparison: before and after a release."""


def _document(row: HistoryRow) -> dict[str, Any]:
    tally = row.tally
    counts = {name: getattr(tally, name) for name in ("executed", "failed", "retried", "revoked")}
    times = {name: _shares(getattr(tally, name)) for name in ("duration", "waiting", "lateness")}
    return {**row.series._asdict(), **counts, **times, "rose": row.rose}


def _shares(times: Histogram) -> dict[str, float] | None:
    if not times.total:
        return None
    return {f"p{share}": round(times.quantile(share / 100), 4) for share in SHARES}
