"""``redis-queue worker NAME``: act on one worker."""

from __future__ import annotations

import click

from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.audit import Record
from redis_queue.cli.confirmation import confirm
from redis_queue.cli.report import report
from redis_queue.monitor.model import WorkerRow
from redis_queue.operate import worker_actions
from redis_queue.operate.access import Access


@click.group(cls=Group)
@click.argument("name")
@click.pass_context
def worker(context: click.Context, name: str) -> None:
    """Shut down the worker NAME, or change how many tasks it runs at once.

    Needs a Celery app. The names of workers: redis-queue workers.

    Example: redis-queue -A shop worker celery@host resize 8
    """
    context.meta["redis_queue.name"] = name


def _row(access: Access) -> WorkerRow:
    worker_actions.app_of(access)
    return worker_actions.worker_of(access, click.get_current_context().meta["redis_queue.name"])


@worker.command("shutdown", cls=StoreCommand)
@options.dry_run
@options.yes
@options.as_json
@with_access
def shut_down(access: Access, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Let the worker end its running tasks, then itself, as after SIGTERM. A supervisor may start it again.

    Example: redis-queue -A shop worker celery@host shutdown
    """
    row = _row(access)
    if dry_run:
        report("to_be_shut_down", 1, as_json=as_json, more={"running": row.busy})
        return
    confirm(f"Shut down {row.name} after its {row.busy:,} running tasks?", yes=yes)
    record = Record(access, "shutdown", [row.name])
    worker_actions.shut_down(access, row)
    record.write(1)
    report("shutting_down", 1, as_json=as_json)


@worker.command(cls=StoreCommand)
@click.argument("size", type=click.IntRange(1, worker_actions.MOST_SIZE))
@options.dry_run
@options.yes
@options.as_json
@with_access
def resize(access: Access, *, size: int, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Let the worker run SIZE tasks at once, until it ends: its next start has the size of its command line.

    Only with the prefork, gevent and eventlet pools, and without --autoscale. Busy processes cannot be removed.

    Example: redis-queue -A shop worker celery@host resize 8
    """
    row = _row(access)
    worker_actions.check_size(row, size)
    if dry_run:
        report("to_be_resized", 1, as_json=as_json, more={"from": row.concurrency, "to": size})
        return
    confirm(f"Let {row.name} run {size:,} tasks at once, not {row.concurrency:,}?", yes=yes)
    record = Record(access, "resize", [row.name], detail=f"from {row.concurrency} to {size}")
    worker_actions.resize(access, row, size)
    record.write(1)
    report("resized", 1, as_json=as_json)
