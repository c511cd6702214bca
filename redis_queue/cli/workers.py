"""``redis-queue workers``, ``running``, ``worker NAME`` and ``terminate``: workers and their tasks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click

from redis_queue.basics.times import span_text
from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.actions import one_command, only_ids, rows_command
from redis_queue.cli.output import show_count, show_json, show_place, show_table
from redis_queue.operate.access import Access
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.items import RunningRow
from redis_queue.operate.items import running as running_tasks
from redis_queue.operate.liveness import state_of

MEGABYTE: Final = 1_000_000


@click.command(cls=StoreCommand)
@click.option("--name", default="", help="Only workers whose names contain this text.")
@options.limit(50)
@options.as_json
@with_access
def workers(access: Access, *, name: str, limit: int, as_json: bool) -> None:
    """List the workers that report, with their state; it sends no broadcast.

    Example: redis-queue workers
    """
    catalog, now = access.catalog, access.inspector.now()
    rows, _ = access.monitor.workers.page(name, 0, limit)
    found = [(row, *state_of(row, max(0.0, (now - row.seen_at).total_seconds()))) for row in rows]
    if as_json:
        show_json({"at": now, "workers": [{**asdict(row), "state": state, "reason": why} for row, state, why in found]})
        return
    if not found:
        show_place(catalog, "no worker reports")
        return
    heads = ["worker", "state", "pool", "busy", "prefetched", "per minute", "failed", "MB", "seen"]
    show_table(heads, [_worker(row, state, now) for row, state, _ in found], keep=heads[:2])
    show_count(catalog, len(found), more=len(found) == limit)


def _worker(row: Any, state: str, now: Any) -> list[Any]:
    return [
        row.name,
        state,
        row.pool,
        f"{row.busy} of {row.concurrency}",
        row.prefetched,
        row.executed_per_minute,
        row.failed_per_minute,
        round(row.memory / MEGABYTE),
        span_text(now - row.seen_at),
    ]


@click.command(cls=StoreCommand)
@options.task_part
@click.option("--worker", default="", help="Only workers whose names contain this text.")
@options.limit(50)
@options.body
@options.as_json
@with_access
def running(access: Access, *, task_part: str | None, worker: str, limit: int, with_body: bool, as_json: bool) -> None:
    """List the tasks that workers have run for a second or more, longest first.

    Example: redis-queue running
    """
    rows = running_tasks(access, task=task_part or "", worker=worker, limit=limit)
    if as_json:
        show_json({"running": [_document(row, with_body=with_body) for row in rows]})
        return
    if not rows:
        show_place(access.catalog, "no task has run for a second or more")
        return
    heads = ["task", "id", "runs for", "usually", "worker", "lease", *(["args", "kwargs"] if with_body else [])]
    show_table(heads, [_task(row, with_body=with_body) for row in rows], keep=heads[:2], below=["args", "kwargs"])
    show_count(access.catalog, len(rows), more=len(rows) == limit)


def _document(row: RunningRow, *, with_body: bool) -> dict[str, Any]:
    task = {name: value for name, value in asdict(row.task).items() if with_body or name not in ("args", "kwargs")}
    return {**task, "seconds": round(row.seconds, 3), "p50": row.p50, "p95": row.p95, "slow": row.is_slow}


def _task(row: RunningRow, *, with_body: bool) -> list[Any]:
    task, usual = row.task, "-" if row.p95 is None else f"{span_text(row.p50)}, {span_text(row.p95)}"
    cells = [task.task, task.id, span_text(row.seconds), usual, task.worker, task.lease]
    return [*cells, *([task.args, task.kwargs] if with_body else [])]


@click.group(cls=Group)
@click.argument("name")
@click.pass_context
def worker(context: click.Context, name: str) -> None:
    """Shut down the worker NAME, or change how many tasks it runs at once.

    Needs a Celery app. The names of workers: redis-queue workers.

    Example: redis-queue -A shop worker celery@host resize 8
    """
    context.meta["redis_queue.name"] = name


for _verb in ("shutdown", "resize"):
    worker.add_command(
        one_command(
            ACTIONS["worker", _verb],
            scope=lambda _access, _values: {"name": click.get_current_context().meta["redis_queue.name"]},
        )
    )


terminate = rows_command(ACTIONS["running", "terminate"], only_ids, scope=lambda _access, _values: {})
