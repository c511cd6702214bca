"""``redis-queue dead``: the dead letters of both kinds of queues."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from redis_queue.batches import CHUNK, MAX_RATE, MIN_RATE
from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.acting import agree, at_once, end_with, in_batches, report
from redis_queue.cli.acting import purge as delete_all
from redis_queue.cli.ids import Named, named
from redis_queue.cli.one import show_one
from redis_queue.cli.output import show_count, show_table, shown_body
from redis_queue.console.access import Access
from redis_queue.console.dead import Filter, task_of
from redis_queue.console.dead import redrive as redrive_pairs
from redis_queue.console.faults import Faults
from redis_queue.console.pages import first, sized
from redis_queue.inspector import AnyQueue, kind_of
from redis_queue.keys import is_id
from redis_queue.model import DeadLetter


def _filtered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options and pass them as *only*."""

    @functools.wraps(function)
    def wrapper(*args: Any, reason: str | None, id_prefix: str | None, task: str | None, **kwargs: Any) -> Any:
        return function(*args, only=Filter(reason, id_prefix, task), **kwargs)

    for option in (
        click.option("--task", help="Only calls of the task with this name."),
        click.option("--id-prefix", help="Only ids that begin like this."),
        click.option("--reason", help="Only those with this text in their reason."),
    ):
        wrapper = option(wrapper)
    return wrapper


@click.group(cls=Group)
def dead() -> None:
    """List, redrive and delete dead letters."""


@dead.command("list", cls=StoreCommand)
@options.name
@_filtered
@options.limit()
@options.body
@options.as_json
@with_access
def list_(access: Access, *, name: str | None, only: Filter, limit: int, with_body: bool, as_json: bool) -> None:
    """List dead letters, oldest first in each queue.

    Example: redis-queue dead list --name orders --reason Timeout
    """
    faults = Faults()
    letters, more = first(only.letters(access.queues(name, faults), faults), limit)
    if as_json:
        shown = {"dead": [_fields(*pair, with_body=with_body) for pair in letters], "more": more}
        end_with(faults, shown, as_json=True)
        return
    heads = ("id", "queue", "died (UTC)", "deliveries", "reason", *(("body",) if with_body else ()))
    show_table(heads, [_row(*pair, with_body=with_body) for pair in letters], keep=("id", "died (UTC)"))
    show_count(len(letters), more=more)
    end_with(faults)


@dead.command(cls=StoreCommand)
@click.argument("id")
@options.name
@options.body
@options.as_json
@with_access
def show(access: Access, *, id: str, name: str | None, with_body: bool, as_json: bool) -> None:
    """Show one dead letter."""
    faults = Faults()
    letters = Filter(id_prefix=id).letters(access.queues(name, faults), faults)
    show_one("dead letter", id, letters, partial(_fields, with_body=with_body), faults, as_json=as_json)


@dead.command(cls=StoreCommand)
@named
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@options.name
@_filtered
@click.option("--rate", type=options.Number(MIN_RATE, MAX_RATE), help="So many per second.  [default: all at once]")
@options.dry_run
@options.yes
@options.as_json
@with_access
def redrive(
    access: Access,
    *,
    named: Named,
    everything: bool,
    name: str | None,
    only: Filter,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Bring dead letters back to life, with their deliveries counted from zero.

    With --rate those of each queue are delayed, one after the other, and the command does not wait.

    Example: redis-queue dead redrive --reason Timeout --rate 50
    """
    if sum((named.given, bool(only), everything)) != 1:
        raise click.UsageError("give ids, or conditions like --reason, or --all")
    ids = frozenset(named.ids)
    faults = Faults()
    queues = access.queues(name, faults)
    if named.given and not dry_run:
        # Whether they are dead is seen when they are redriven.
        pairs = [(queue, id_) for queue in queues for id_ in named.ids]
    else:
        letters = only.letters(queues, faults)
        # One that was written by hand may have an id that no call takes.
        pairs = [(queue, letter.id) for queue, letter in letters if is_id(letter.id)]
        pairs = [pair for pair in pairs if pair[1] in ids] if named.given else pairs
    if dry_run:
        report("to_be_redriven", len(pairs), error=faults.text(), as_json=as_json)
        return
    if pairs and not named.typed:
        agree(f"Redrive {len(named.ids) or len(pairs):,} dead letters?", yes=yes)

    def lacking(done: int) -> str:
        return faults.text() or ("" if done else named.missing("dead letter"))

    if rate is None:
        act = partial(redrive_pairs, faults=faults)
        in_batches("redriven", pairs, act, size=CHUNK, as_json=as_json, lacking=lacking)
    else:
        at_once(
            "redriven",
            partial(redrive_pairs, pairs, faults, rate),
            lambda: sum(size for _, size in sized(queues, _dead, Faults())),
            as_json=as_json,
            lacking=lacking,
        )


@dead.command(cls=StoreCommand)
@options.name
@options.dry_run
@options.yes
@options.as_json
@with_access
def purge(access: Access, *, name: str | None, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete all dead letters, or those of the queues with one name.

    Example: redis-queue dead purge --name orders --dry-run
    """
    faults = Faults()
    counted = sized(access.queues(name, faults), _dead, faults)
    delete_all("dead letters", counted, ["dead"], faults, dry_run=dry_run, yes=yes, as_json=as_json)


def _dead(queue: AnyQueue) -> int:
    return queue.stats().dead


def _row(queue: AnyQueue, letter: DeadLetter, *, with_body: bool) -> list[Any]:
    row = [letter.id, queue.name, letter.died_at, letter.deliveries, letter.reason]
    return [*row, shown_body(letter.body)] if with_body else row


def _fields(queue: AnyQueue, letter: DeadLetter, *, with_body: bool) -> dict[str, Any]:
    known = {
        "id": letter.id,
        "queue": queue.name,
        "kind": kind_of(queue),
        "died_at": letter.died_at,
        "deliveries": letter.deliveries,
        "reason": letter.reason,
        "task": task_of(letter) or None,
    }
    return {**known, "headers": dict(letter.headers), "body": letter.body} if with_body else known
