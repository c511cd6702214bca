"""``redis-queue scheduled``: the entries of a DelayQueue, which are delayed Celery tasks or data."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, Final

import click

from redis_queue.basics.times import span_text
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.batches import run_batches
from redis_queue.cli.entry_selection import Entries, conditions, selection_options
from redis_queue.cli.output import show_count, show_fields, show_json, show_place, show_table, shown_body
from redis_queue.cli.report import report
from redis_queue.cli.transfer import export, import_
from redis_queue.errors import InvalidDelayError
from redis_queue.model import Entry
from redis_queue.operate.access import Access
from redis_queue.operate.entries import Conditions, find
from redis_queue.operate.faults import Faults
from redis_queue.operate.pages import first
from redis_queue.operate.relative_time import When
from redis_queue.operate.search_report import SearchReport
from redis_queue.operate.verbs import CANCEL, RESCHEDULE, RUN_NOW, Verb, check_new_time
from redis_queue.store.chunks import CHUNK

_change = options.together(
    selection_options, options.delay_queue, options.utc, options.dry_run, options.yes, options.as_json, with_access
)

BAR: Final = 30
"""Longest bar of a forecast."""


@click.group(cls=Group)
def scheduled() -> None:
    """List, reschedule and cancel waiting entries.

    Entries are read without importing or unpickling anything; entries that are not tasks show no task name.
    """


@scheduled.command("list", cls=StoreCommand)
@options.delay_queue
@conditions
@options.limit()
@options.body
@options.utc
@options.as_json
@with_access
def list_(
    access: Access, *, name: str | None, conditions: Conditions, limit: int, with_body: bool, as_json: bool
) -> None:
    """List waiting entries by due time.

    Example: redis-queue scheduled list --task shop.remind --due-before 2h
    """
    queue, scan = access.delay_queue(name), SearchReport()
    entries, more = first(find(access, queue, conditions, scan), limit)
    if as_json:
        show_json({"entries": [_fields(*pair, with_body=with_body) for pair in entries], "more": more})
        return
    if not entries:
        nothing = scan.no_match("entries") if conditions else f"no entries wait in {queue.name!r}"
        show_place(access.catalog, nothing, scan.hint(conditions.task_part))
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


@scheduled.command(cls=StoreCommand)
@_change
def cancel(access: Access, *, chosen: Entries, name: str | None, **flags: bool) -> None:
    """Cancel entries. They never run, except those that were claimed before and may have been sent.

    With a Celery app, their tasks become REVOKED in its result backend, too.

    Example: redis-queue scheduled cancel --task shop.remind --due-before 2h --dry-run
    """
    _act(access, CANCEL, chosen, name, None, **flags)


@scheduled.command(cls=StoreCommand)
@click.option("--to", "when", type=options.when, required=True, help="New due time: 2030-01-01T00:00Z, or 2h from now.")
@_change
def reschedule(access: Access, *, chosen: Entries, when: When, name: str | None, **flags: bool) -> None:
    """Change when entries are due.

    Example: redis-queue scheduled reschedule order-42 --to 2h
    """
    try:
        check_new_time(when)
    except InvalidDelayError as error:
        raise click.BadParameter(str(error), param_hint="--to") from None
    _act(access, RESCHEDULE, chosen, name, when, **flags)


@scheduled.command("run-now", cls=StoreCommand)
@_change
def run_now(access: Access, *, chosen: Entries, name: str | None, **flags: bool) -> None:
    """Make entries due at once.

    Example: redis-queue scheduled run-now order-42
    """
    _act(access, RUN_NOW, chosen, name, None, **flags)


def _act(
    access: Access,
    verb: Verb,
    chosen: Entries,
    name: str | None,
    when: When | None,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    queue = access.delay_queue(name)
    ids = chosen.find(access, queue)
    pairs = [(queue, id_) for id_ in ids]
    if dry_run:
        # Found entries exist; given ids may not.
        count = sum(queue.get(id_) is not None for id_ in ids) if chosen.ids.present else len(ids)
        chosen.preview(verb, count, pairs, as_json=as_json)
        return
    chosen.confirm(verb, pairs, yes=yes)
    problem = partial(chosen.problem, faults=Faults())
    record = chosen.record(access, verb, pairs, "" if when is None else _time_text(when))
    batches = verb.run(access, queue, ids, when)
    run_batches(verb.past.replace(" ", "_"), len(ids), batches, record, as_json=as_json, problem=problem)


def _time_text(when: When) -> str:
    return f"in {span_text(when)}" if isinstance(when, timedelta) else f"{when:%Y-%m-%dT%H:%M:%S%z}"


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
