"""``redis-queue celery-queue NAME``: the messages that wait in one of Celery's queues."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Final

import click
from kombu.exceptions import OperationalError

from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.audit import Record
from redis_queue.cli.batches import run_batches
from redis_queue.cli.confirmation import confirm, preview
from redis_queue.cli.ids import IdArguments, id_arguments
from redis_queue.cli.output import harmless, show_count, show_json, show_place, show_table
from redis_queue.cli.report import report
from redis_queue.operate.access import Access
from redis_queue.operate.celery_messages import (
    Conditions,
    WaitingMessage,
    as_row,
    celery_queues_of,
    check_target,
    find,
    purge_queue,
    references_of,
    remove,
    subject,
)
from redis_queue.operate.celery_queue_row import CeleryQueueRow
from redis_queue.operate.pages import first
from redis_queue.operate.search_report import SearchReport
from redis_queue.operate.subjects import SHOWN
from redis_queue.store.chunks import MANY

_TEXT: Final = click.option("--text", help="Only messages whose arguments contain this text.")


@click.group("celery-queue", cls=Group)
@click.argument("name")
@click.pass_context
def celery_queue(context: click.Context, name: str) -> None:
    """Read and change the messages that wait in the Celery queue NAME.

    Needs a Celery app on a Redis broker; purge works on every broker.

    Example: redis-queue -A shop celery-queue mail peek --limit 5
    """
    context.meta["redis_queue.name"] = name


def _name(access: Access) -> str:
    """Return the name of the queue; an unknown one is an error."""
    return celery_queues_of(access).check(click.get_current_context().meta["redis_queue.name"])


def _broker_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn errors of the broker into one line."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except OperationalError as error:
            raise click.ClickException(f"the broker cannot be read: {harmless(error)}") from error

    return wrapper


def _condition_options(task: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the conditions, including *task*, and passes them as *only*."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            values = {item.name: kwargs.pop(item.name, None) for item in fields(Conditions)}
            return function(*args, only=Conditions(**values), **kwargs)

        for option in (task, click.option("--id-prefix", help="Only ids with this prefix."), _TEXT):
            wrapper = option(wrapper)
        return wrapper

    return add


@celery_queue.command(cls=StoreCommand)
@_condition_options(options.task_part)
@options.limit(10)
@options.body
@options.utc
@options.as_json
@with_access
@_broker_errors
def peek(access: Access, *, only: Conditions, limit: int, with_body: bool, as_json: bool) -> None:
    """Show the next messages without taking them, then those that wait for a place in a flow.

    With conditions, those that match. It reads the 10,000 oldest messages of each priority, and of each of the 10,000
    keys of flows that have waited longest. On RabbitMQ, it shows only those that wait for a place. Bodies are not
    shown, but the arguments that a message names.

    Example: redis-queue -A shop celery-queue mail peek --task remind --body
    """
    name, scan = _name(access), SearchReport()
    found, more = first(find(access, name, only, scan), limit)
    rows = [as_row(message, with_body=with_body) for message in found]
    if as_json:
        show_json({"messages": rows, "more": more})
        return
    if not rows:
        show_place(access.catalog, scan.no_match("messages") if only else "no messages", scan.hint(only.task_part))
        return
    heads = ["id", "since", "bytes", "priority", "waits_for", "task", *(["args", "kwargs"] if with_body else [])]
    show_table(heads, [[row[head] for head in heads] for row in rows], keep=heads[:2], below=heads[5:])
    show_count(access.catalog, len(rows), more=more)


@celery_queue.command(cls=StoreCommand)
@id_arguments
@click.option("--to", "target", required=True, help="The queue to which they are moved.")
@click.option("--all", "everything", is_flag=True, help="All messages.")
@_condition_options(options.task)
@options.utc
@options.dry_run
@options.yes
@options.as_json
@with_access
@_broker_errors
def move(access: Access, *, target: str, only: Conditions, **choice: Any) -> None:
    """Move messages to another queue, by id, by conditions, or all; they keep order and priority.

    Those that wait for a place in a flow stay. It reaches the 10,000 oldest messages of each priority; run it again for
    more.

    Example: redis-queue -A shop celery-queue mail move --task shop.remind --to slow
    """
    name = _name(access)
    _act(access, name, only, check_target(access, name, target), **choice)


@celery_queue.command(cls=StoreCommand)
@id_arguments
@_condition_options(options.task)
@options.utc
@options.dry_run
@options.yes
@options.as_json
@with_access
@_broker_errors
def delete(access: Access, *, only: Conditions, **choice: Any) -> None:
    """Delete messages, by id or by conditions, also those that wait for a place in a flow: their tasks never run.

    It reaches the 10,000 oldest messages of each priority. To delete all: celery-queue NAME purge.

    Example: redis-queue -A shop celery-queue mail delete --task shop.remind --dry-run
    """
    _act(access, _name(access), only, None, everything=False, **choice)


@celery_queue.command(cls=StoreCommand)
@options.dry_run
@options.yes
@options.as_json
@with_access
@_broker_errors
def purge(access: Access, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete all messages that wait, also for a place in a flow; those in flight stay with their workers.

    Example: redis-queue -A shop celery-queue mail purge --dry-run
    """
    name = _name(access)
    row: CeleryQueueRow = celery_queues_of(access).row(name)
    if row.error or row.ready is None:
        raise click.ClickException(harmless(row.error or f"{name}: this broker does not count its messages"))
    if dry_run:
        report("to_be_deleted", row.ready, as_json=as_json)
        return
    confirm(f"Delete {row.ready:,} messages of {name}?", yes=yes)
    record = Record(access, "purge", [name])
    run_batches("deleted", row.ready, purge_queue(access, name, row.ready or 1), record, as_json=as_json)


def _act(
    access: Access,
    name: str,
    only: Conditions,
    target: str | None,
    *,
    ids: IdArguments,
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    if sum((ids.present, bool(only), everything)) != 1:
        raise click.UsageError("give ids, or conditions like --task" + ("" if target is None else ", or --all"))
    scan = SearchReport()
    wanted = frozenset(ids.ids)
    found, _ = first((row for row in find(access, name, only, scan) if not ids.present or row.id in wanted), MANY)
    verb, past = ("Delete", "deleted") if target is None else ("Move", "moved")
    if not found and only:
        click.echo(harmless(scan.no_match("messages") + scan.hint(only.task)), err=True)
    subjects = [subject(name, message) for message in found[:SHOWN]]
    if dry_run:
        preview(past, len(found), subjects, at="sent", as_json=as_json)
        return
    if found:
        to = "" if target is None else f" to {target}"
        confirm(f"{verb} {len(found):,} messages of {name}{to}?", lambda: subjects, len(found), at="sent", yes=yes)
    batches = remove(access, name, references_of(found), target)
    record = Record(access, verb.lower(), [name], subjects, target or "")
    run_batches(past, len(found), batches, record, as_json=as_json, problem=lambda done: _problem(done, found, ids))


def _problem(done: int, found: Sequence[WaitingMessage], ids: IdArguments) -> str:
    if not done and ids.present:
        return ids.missing("message")
    left = len(found) - done
    return f"{left:,} stay: taken by a worker, changed, larger than 1 MiB, or of another program" if left else ""
