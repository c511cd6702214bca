"""``redis-queue scheduled``: the entries of a DelayQueue, which are delayed Celery tasks or data."""

from __future__ import annotations

from functools import partial, wraps
from typing import Any, Final

import click

from redis_queue.basics.options import Conditions
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.cli import options
from redis_queue.cli.access import Group
from redis_queue.cli.actions import id_arguments, rows_command
from redis_queue.cli.listing import Row, conditions, show_item, show_listing, show_rows
from redis_queue.cli.output import shown_body
from redis_queue.cli.transfer import export, import_
from redis_queue.operate.access import Access
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.items import Entries, Waiting
from redis_queue.store.chunks import CHUNK

BAR: Final = 30
"""Longest bar of a forecast."""


@click.group(cls=Group)
def scheduled() -> None:
    """List, reschedule and cancel waiting entries.

    Entries are read without importing or unpickling anything; entries that are not tasks show no task name.
    """


@scheduled.command("list")
@options.delay_queue
@options.limit()
@options.body
@options.output
@conditions("entries", options.task_part)
def list_(access: Access, *, name: str | None, only: Conditions, limit: int, with_body: bool) -> None:
    """List waiting entries by due time.

    Example: redis-queue scheduled list --task shop.remind --due-before 2h
    """
    queue = access.delay_queue(name)
    show_listing(
        access,
        "entries",
        Entries(access, queue, only),
        partial(_fields, with_body=with_body),
        {
            "id": "id",
            "due": "due_at",
            "task": "task",
            **({"arguments": _arguments} if with_body else {"queue": "queue"}),
        },
        limit=limit,
        keep=("id", "due"),
        below=("task", "arguments"),
        nothing=f"no entries wait in {queue.name!r}",
    )


def _arguments(row: Row) -> str:
    return f"{row['args']} {row['kwargs']}" if "args" in row else shown_body(row["payload"])


def _fields(found: Waiting, *, with_body: bool) -> dict[str, Any]:
    entry, task = found
    known = {
        "id": entry.id,
        "due_at": entry.due_at,
        "stored_at": entry.put_at,
        "deliveries": entry.deliveries,
        "destination": entry.destination,
        "task": task.task or None,
        "queue": task.queue or None,
        "priority": task.priority,
        "retries": task.retries,
        "expires_at": task.expires_at,
    }
    if not with_body:
        return known
    return {**known, **({"args": task.args, "kwargs": task.kwargs} if task.task else {"payload": entry.payload})}


@scheduled.command()
@click.argument("id")
@options.delay_queue
@options.body
@options.output
def show(access: Access, *, id: str, name: str | None, with_body: bool) -> None:
    """Show one entry that waits or is in flight."""
    entry = access.delay_queue(name).get(id)
    fields = None if entry is None else _fields((entry, TaskEntry.of(entry)), with_body=with_body)
    show_item(fields, f"no entry {id!r} waits")


def _in_queue(function: options.Function) -> options.Function:
    """Pass the name of the DelayQueue as the scope of an action."""

    @wraps(function)
    def wrapper(access: Access, *, name: str | None, **values: Any) -> Any:
        return function(access, queue=name, **values)

    return options.delay_queue(wrapper)


for _verb in ("cancel", "reschedule", "run-now"):
    scheduled.add_command(rows_command(ACTIONS["scheduled", _verb], id_arguments, conditions("entries"), _in_queue))


@scheduled.command()
@click.option("--hours", type=options.Number(0.01, 24 * 3650), default=24.0, show_default=True, help="Hours ahead.")
@click.option("--buckets", type=click.IntRange(1, CHUNK), default=24, show_default=True, help="Number of time windows.")
@options.delay_queue
@options.output
def forecast(access: Access, *, hours: float, buckets: int, name: str | None) -> None:
    """Count the entries due in each time window; overdue entries count in the first.

    Example: redis-queue scheduled forecast --hours 1 --buckets 6
    """
    found = access.delay_queue(name).forecast(buckets, width=hours * 3600 / buckets)
    most = max(count for _, count in found) or 1
    show_rows(
        access,
        {"windows": [{"from": start, "due": count} for start, count in found]},
        {"from": "from", "due": "due", "": lambda row: "#" * -(-row["due"] * BAR // most)},
    )


scheduled.add_command(export)
scheduled.add_command(import_)
__all__ = ["scheduled"]
