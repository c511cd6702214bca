"""``redis-queue workers``, ``running``, ``worker NAME`` and ``terminate``: workers and their tasks."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any, Final

import click

from redis_queue.basics.times import span_text
from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.actions import one_command, only_ids, rows_command
from redis_queue.cli.listing import Column, show_rows
from redis_queue.cli.output import wants_json
from redis_queue.operate.access import Access
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.items import RunningRow
from redis_queue.operate.items import running as running_tasks
from redis_queue.operate.liveness import with_tasks, worker_states

MEGABYTE: Final = 1_000_000


@click.command(cls=StoreCommand)
@click.option("--name", default="", help="Only workers whose names contain this text.")
@options.limit(50)
@options.as_json
@with_access
def workers(access: Access, *, name: str, limit: int) -> None:
    """List the workers with their state, problems first; it sends no broadcast.

    A worker that did not report for 5 s is silent, for a minute lost. Lost workers are listed for an hour, or until
    somebody clears them: redis-queue worker NAME clear.

    Example: redis-queue workers
    """
    now = access.inspector.now()
    found = worker_states(access.monitor.workers, name)
    shown = with_tasks(access.monitor.workers, found[:limit])
    by_release = Counter(one.row.release for one in found if one.state != "lost")
    known = access.monitor.releases() if wants_json() else []
    releases = {"releases": [{**asdict(row), "workers": by_release[row.release]} for row in known]}
    columns: dict[str, Column] = {
        "worker": "name",
        "state": "state",
        "reason": lambda row: None if row["severity"] == "good" else row["reason"],
        "pool": "pool",
        "busy": lambda row: f"{row['busy']} of {row['concurrency']}",
        "prefetched": "prefetched",
        "last min": "executed_per_minute",
        "failed of it": "failed_per_minute",
        "MB": lambda row: round(row["memory"] / MEGABYTE),
        "release": lambda row: row["release"] or None,
    }
    rows = [{**asdict(one.row), "state": one.state, "severity": one.severity, "reason": one.reason} for one in shown]
    show_rows(
        access,
        {"at": now, "workers": rows, **releases},
        columns,
        keep=("worker", "state"),
        below=("reason",),
        nothing="no worker reports",
        more=len(found) > limit,
    )


@click.command(cls=StoreCommand)
@options.task_part
@click.option("--worker", default="", help="Only workers whose names contain this text.")
@options.limit(50)
@options.body
@options.as_json
@with_access
def running(access: Access, *, task_part: str | None, worker: str, limit: int, with_body: bool) -> None:
    """List the tasks that workers have run for a second or more, longest first.

    Example: redis-queue running
    """
    rows = running_tasks(access, task=task_part or "", worker=worker, limit=limit)
    columns: dict[str, Column] = {
        "task": "task",
        "id": "id",
        "runs for": lambda row: span_text(row["seconds"]),
        "usually": lambda row: "-" if row["p95"] is None else f"{span_text(row['p50'])}, {span_text(row['p95'])}",
        "worker": "worker",
        "lease": "lease",
        **({"args": "args", "kwargs": "kwargs"} if with_body else {}),
    }
    show_rows(
        access,
        {"running": [_document(row, with_body=with_body) for row in rows]},
        columns,
        keep=("task", "id"),
        below=("args", "kwargs"),
        nothing="no task has run for a second or more",
        more=len(rows) == limit,
    )


def _document(row: RunningRow, *, with_body: bool) -> dict[str, Any]:
    task = {name: value for name, value in asdict(row.task).items() if with_body or name not in ("args", "kwargs")}
    return {**task, "seconds": round(row.seconds, 3), "p50": row.p50, "p95": row.p95, "slow": row.is_slow}


@click.group(cls=Group)
@click.argument("name")
def worker(**_: str) -> None:
    """Shut down the worker NAME, change how many tasks it runs at once, or clear it if it is lost.

    Needs a Celery app, but for clear. The names of workers: redis-queue workers.

    Example: redis-queue -A shop worker celery@host resize 8
    """


for _verb in ("shutdown", "resize", "clear"):
    worker.add_command(one_command(ACTIONS["worker", _verb], options.group_name))


terminate = rows_command(ACTIONS["running", "terminate"], only_ids)
