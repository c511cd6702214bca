"""``redis-queue scheduled``: the entries of a DelayQueue, which are delayed Celery tasks or data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import click

from redis_queue.celery.conditions import Conditions
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.acting import in_batches, preview, report
from redis_queue.cli.conditions import Chosen, chosen, conditions, first_of
from redis_queue.cli.output import show_count, show_fields, show_json, show_place, show_table, shown_body
from redis_queue.cli.transfer import export, import_
from redis_queue.delay.queue import DelayQueue
from redis_queue.model import CancelOutcome, Entry
from redis_queue.operate.access import Access
from redis_queue.operate.entries import find
from redis_queue.operate.pages import first
from redis_queue.operate.relative_time import When
from redis_queue.operate.scan import Scan
from redis_queue.store.chunks import CHUNK

BAR: Final = 30
"""Longest bar of a forecast."""

ONE_BY_ONE: Final = 1


@click.group(cls=Group)
def scheduled() -> None:
    """List, move and cancel what waits for its time.

    Entries are read without importing or unpickling anything; what is no task shows no task name.
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
    """List what waits, by due time.

    Example: redis-queue scheduled list --task shop.remind --due-before 2h
    """
    queue, scan = access.delay_queue(name), Scan()
    entries, more = first(find(access, queue, conditions, scan), limit)
    if as_json:
        show_json({"entries": [_fields(*pair, with_body=with_body) for pair in entries], "more": more})
        return
    if not entries:
        nothing = scan.no_match("entries") if conditions else f"nothing waits in {queue.name!r}"
        show_place(access.inspector, nothing, scan.hint(conditions.task_part))
        return
    heads = ("id", "due", "task", "arguments" if with_body else "queue")
    show_table(
        heads, [_row(*pair, with_body=with_body) for pair in entries], keep=("id", "due"), below=("task", "arguments")
    )
    show_count(access.inspector, len(entries), more=more)


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
@chosen
@options.delay_queue
@options.utc
@options.dry_run
@options.yes
@options.as_json
@with_access
def cancel(access: Access, *, chosen: Chosen, name: str | None, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Cancel entries: they will never run, except those that were claimed before and may have been sent.

    With a Celery app their tasks become REVOKED in its result backend, too.

    Example: redis-queue scheduled cancel --task shop.remind --due-before 2h --dry-run
    """
    queue = access.delay_queue(name)
    unsure = 0

    def take_out(part: Sequence[str]) -> int:
        nonlocal unsure
        outcomes = access.cancel(queue, part)
        unsure += outcomes.count(CancelOutcome.MAYBE_SENT)
        return sum(outcome.taken_out for outcome in outcomes)

    work = Work("Cancel", "cancelled", take_out, CHUNK, destroys=True)
    try:
        _act(access, queue, chosen, work, dry_run=dry_run, yes=yes, as_json=as_json)
    finally:
        if unsure:
            click.echo(f"{unsure:,} of them were claimed before and may have been sent: revoke them as well", err=True)


@scheduled.command(cls=StoreCommand)
@chosen
@click.option("--to", "when", type=options.when, required=True, help="2030-01-01T00:00Z, or 2h from now.")
@options.delay_queue
@options.utc
@options.dry_run
@options.yes
@options.as_json
@with_access
def reschedule(
    access: Access, *, chosen: Chosen, when: When, name: str | None, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Change when entries are due.

    Example: redis-queue scheduled reschedule order-42 --to 2h
    """
    queue = access.delay_queue(name)
    if isinstance(when, timedelta) and when < timedelta(0):
        raise click.BadParameter("is in the past; run-now makes entries due at once", param_hint="--to")

    def move(part: list[str]) -> int:
        if isinstance(when, timedelta):
            return sum(queue.reschedule(id_, delay=when) for id_ in part)
        return sum(queue.reschedule(id_, due_at=when) for id_ in part)

    work = Work("Reschedule", "rescheduled", move)
    _act(access, queue, chosen, work, dry_run=dry_run, yes=yes, as_json=as_json)


@scheduled.command("run-now", cls=StoreCommand)
@chosen
@options.delay_queue
@options.utc
@options.dry_run
@options.yes
@options.as_json
@with_access
def run_now(access: Access, *, chosen: Chosen, name: str | None, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Make entries due at once.

    Example: redis-queue scheduled run-now order-42
    """
    queue = access.delay_queue(name)

    def move(part: list[str]) -> int:
        return sum(queue.run_now(id_) for id_ in part)

    work = Work("Run", "made_due", move)
    _act(access, queue, chosen, work, dry_run=dry_run, yes=yes, as_json=as_json)


@dataclass(frozen=True, slots=True)
class Work:
    """What is done with chosen entries, *size* at a time: an interruption waits for no more than that."""

    question: str
    verb: str
    act: Callable[[list[str]], int]
    size: int = ONE_BY_ONE
    destroys: bool = False


def _act(
    access: Access, queue: DelayQueue, chosen: Chosen, work: Work, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    ids = chosen.find(access, queue)
    if dry_run:
        count = _waiting(queue, chosen, ids)
        preview(f"to_be_{work.verb}", count, first_of(queue, ids), at="due", as_json=as_json)
        return
    chosen.confirm(work.question, queue, ids, yes=yes, always=work.destroys)

    def lacking(done: int) -> str:
        return "" if done else chosen.named.missing("entry that waits")

    in_batches(work.verb, ids, work.act, size=work.size, as_json=as_json, lacking=lacking)


def _waiting(queue: DelayQueue, chosen: Chosen, ids: list[str]) -> int:
    """Count which of the ids that somebody gave are there; those that were found are."""
    return sum(queue.get(id_) is not None for id_ in ids) if chosen.named.given else len(ids)


@scheduled.command(cls=StoreCommand)
@click.option("--hours", type=options.Number(0.01, 24 * 3650), default=24.0, show_default=True, help="How far ahead.")
@click.option("--buckets", type=click.IntRange(1, CHUNK), default=24, show_default=True, help="Into how many windows.")
@options.delay_queue
@options.utc
@options.as_json
@with_access
def forecast(access: Access, *, hours: float, buckets: int, name: str | None, as_json: bool) -> None:
    """Count how many fall due when; what is overdue counts in the first window.

    Example: redis-queue scheduled forecast --hours 1 --buckets 6
    """
    found = access.delay_queue(name).forecast(buckets, width=hours * 3600 / buckets)
    if as_json:
        show_json({"windows": [{"from": start, "due": count} for start, count in found]})
        return
    most = max(count for _, count in found) or 1
    rows = [(start, count, "#" * -(-count * BAR // most)) for start, count in found]
    show_table(("from", "due", ""), rows)
    show_place(access.inspector)


scheduled.add_command(export)
scheduled.add_command(import_)
__all__ = ["scheduled"]
