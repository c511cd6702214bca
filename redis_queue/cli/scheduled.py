"""``redis-queue scheduled``: the entries of a DelayQueue, which are delayed Celery tasks or data."""

from __future__ import annotations

from typing import Any, Final

import click

from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.actions import id_arguments, rows_command
from redis_queue.cli.conditions import conditions
from redis_queue.cli.output import show_count, show_fields, show_json, show_place, show_table, shown_body
from redis_queue.cli.report import report
from redis_queue.cli.transfer import export, import_
from redis_queue.model import Entry
from redis_queue.operate.access import Access
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.entries import Conditions, find
from redis_queue.operate.pages import first
from redis_queue.operate.search_report import SearchReport
from redis_queue.store.chunks import CHUNK

BAR: Final = 30
"""Longest bar of a forecast."""


@click.group(cls=Group)
def scheduled() -> None:
    """List, reschedule and cancel waiting entries.

    Entries are read without importing or unpickling anything; entries that are not tasks show no task name.
    """


@scheduled.command("list", cls=StoreCommand)
@options.delay_queue
@options.limit()
@options.body
@options.utc
@options.as_json
@with_access
@conditions(Conditions, options.task_part)
def list_(access: Access, *, name: str | None, only: Conditions, limit: int, with_body: bool, as_json: bool) -> None:
    """List waiting entries by due time.

    Example: redis-queue scheduled list --task shop.remind --due-before 2h
    """
    queue, scan = access.delay_queue(name), SearchReport()
    entries, more = first(find(access, queue, only, scan), limit)
    if as_json:
        show_json({"entries": [_fields(*pair, with_body=with_body) for pair in entries], "more": more})
        return
    if not entries:
        nothing = scan.no_match("entries") if only else f"no entries wait in {queue.name!r}"
        show_place(access.catalog, nothing, scan.hint(only.task_part))
        return
    heads = ("id", "due", "task", "arguments" if with_body else "queue")
    show_table(
        heads, [_row(*pair, with_body=with_body) for pair in entries], keep=("id", "due"), below=("task", "arguments")
    )
    show_count(access.catalog, len(entries), more=more)


def _row(entry: Entry, task: TaskEntry, *, with_body: bool) -> list[Any]:
    return [entry.id, entry.due_at, task.task or "-", _arguments(entry, task) if with_body else task.queue or "-"]


def _arguments(entry: Entry, task: TaskEntry) -> str:
    return f"{task.args} {task.kwargs}" if task.task else shown_body(entry.payload)


def _fields(entry: Entry, task: TaskEntry, *, with_body: bool) -> dict[str, Any]:
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


@scheduled.command(cls=StoreCommand)
@click.argument("id")
@options.delay_queue
@options.body
@options.utc
@options.as_json
@with_access
def show(access: Access, *, id: str, name: str | None, with_body: bool, as_json: bool) -> None:
    """Show one entry that waits or is in flight."""
    entry = access.delay_queue(name).get(id)
    if entry is None:
        report("found", 0, error=f"no entry {id!r} waits", as_json=as_json)
        return
    fields = _fields(entry, TaskEntry.of(entry), with_body=with_body)
    if as_json:
        show_json(fields)
        return
    if "payload" in fields:
        fields["payload"] = shown_body(fields["payload"])
    show_fields(fields)


for _verb in ("cancel", "reschedule", "run-now"):
    scheduled.add_command(
        rows_command(
            ACTIONS["scheduled", _verb],
            id_arguments,
            conditions(Conditions),
            options.delay_queue,
            scope=lambda _, values: {"queue": values.pop("name")},
        )
    )


@scheduled.command(cls=StoreCommand)
@click.option("--hours", type=options.Number(0.01, 24 * 3650), default=24.0, show_default=True, help="Hours ahead.")
@click.option("--buckets", type=click.IntRange(1, CHUNK), default=24, show_default=True, help="Number of time windows.")
@options.delay_queue
@options.utc
@options.as_json
@with_access
def forecast(access: Access, *, hours: float, buckets: int, name: str | None, as_json: bool) -> None:
    """Count the entries due in each time window; overdue entries count in the first.

    Example: redis-queue scheduled forecast --hours 1 --buckets 6
    """
    found = access.delay_queue(name).forecast(buckets, width=hours * 3600 / buckets)
    if as_json:
        show_json({"windows": [{"from": start, "due": count} for start, count in found]})
        return
    most = max(count for _, count in found) or 1
    rows = [(start, count, "#" * -(-count * BAR // most)) for start, count in found]
    show_table(("from", "due", ""), rows)
    show_place(access.catalog)


scheduled.add_command(export)
scheduled.add_command(import_)
__all__ = ["scheduled"]
