"""``redis-queue history``: counts and times of tasks in a time span."""

from __future__ import annotations

from typing import Any, Final

import click

from redis_queue.basics.histogram import Histogram
from redis_queue.basics.times import span_text
from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access
from redis_queue.cli.output import show_count, show_json, show_place, show_table
from redis_queue.operate.access import Access
from redis_queue.operate.history import SPANS, HistoryRow, table

SHARES: Final = (50, 95, 99)


@click.command(cls=StoreCommand)
@click.option("--span", type=click.Choice(list(SPANS)), default="1h", show_default=True, help="The last hours or days.")
@options.task_part
@click.option("--queue", default="", help="Only Celery queues whose names contain this text.")
@options.limit(50)
@options.as_json
@with_access
def history(access: Access, *, span: str, task_part: str | None, queue: str, limit: int, as_json: bool) -> None:
    """Show what tasks did: runs, failures, and how long they ran and waited (p95).

    "worse" marks a task that fails more often than in the same time before.

    Example: redis-queue history --span 6h
    """
    rows = table(access, span, task=task_part or "", queue=queue)[:limit]
    if as_json:
        show_json({"span": span, "tasks": [_document(row) for row in rows]})
        return
    if not rows:
        show_place(access.catalog, "no task ended in this time")
        return
    heads = ["task", "queue", "runs", "failed", "retried", "revoked", "time", "wait", "late", ""]
    show_table(heads, [_cells(row) for row in rows], keep=heads[2:])
    show_count(access.catalog, len(rows), more=len(rows) == limit)


def _document(row: HistoryRow) -> dict[str, Any]:
    tally = row.tally
    counts = {name: getattr(tally, name) for name in ("executed", "failed", "retried", "revoked")}
    times = {name: _shares(getattr(tally, name)) for name in ("duration", "waiting", "lateness")}
    return {**row.series._asdict(), **counts, **times, "rose": row.rose}


def _shares(times: Histogram) -> dict[str, float] | None:
    if not times.total:
        return None
    return {f"p{share}": round(times.quantile(share / 100), 4) for share in SHARES}


def _cells(row: HistoryRow) -> list[Any]:
    tally = row.tally
    times = [_p95(found) for found in (tally.duration, tally.waiting, tally.lateness)]
    counts = [tally.executed, tally.failed, tally.retried, tally.revoked]
    return [row.series.task, row.series.queue, *counts, *times, "worse" if row.rose else ""]


def _p95(times: Histogram) -> str:
    return span_text(times.quantile(0.95), parts=1) if times.total else "-"
