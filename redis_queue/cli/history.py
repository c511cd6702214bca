"""``redis-queue history``: counts and times of tasks in a time span."""

from __future__ import annotations

from typing import Any, Final

import click

from redis_queue.basics.histogram import Histogram
from redis_queue.basics.times import span_text
from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access
from redis_queue.cli.listing import Column, show_rows
from redis_queue.operate.access import Access
from redis_queue.operate.history import SPANS, HistoryRow, table

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
@options.limit(50)
@options.as_json
@with_access
def history(access: Access, *, span: str, task_part: str | None, queue: str, limit: int) -> None:
    """Show what tasks did: runs, failures, and how long they ran and waited (p95).

    "worse" marks a task that fails more often than in the same time before.

    Example: redis-queue history --span 6h
    """
    rows = table(access, span, task=task_part or "", queue=queue)[:limit]
    show_rows(
        access,
        {"span": span, "tasks": [_document(row) for row in rows]},
        COLUMNS,
        keep=list(COLUMNS)[2:],
        nothing="no task ended in this time",
        more=len(rows) == limit,
    )


def _document(row: HistoryRow) -> dict[str, Any]:
    tally = row.tally
    counts = {name: getattr(tally, name) for name in ("executed", "failed", "retried", "revoked")}
    times = {name: _shares(getattr(tally, name)) for name in ("duration", "waiting", "lateness")}
    return {**row.series._asdict(), **counts, **times, "rose": row.rose}


def _shares(times: Histogram) -> dict[str, float] | None:
    if not times.total:
        return None
    return {f"p{share}": round(times.quantile(share / 100), 4) for share in SHARES}
