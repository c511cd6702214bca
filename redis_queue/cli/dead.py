"""``redis-queue dead``: the dead letters of both kinds of queues."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import click

from redis_queue.catalog import AnyQueue, kind_of
from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.batches import purge as delete_all
from redis_queue.cli.batches import purge_command, run_at_once, run_batches
from redis_queue.cli.ids import IdArguments, id_arguments
from redis_queue.cli.output import show_count, show_place, show_table, shown_body
from redis_queue.cli.report import end_with
from redis_queue.cli.selection import Selection
from redis_queue.cli.single_item import item_command, show_one
from redis_queue.model import DeadLetter
from redis_queue.operate.access import Access
from redis_queue.operate.dead_letters import Filter, Pair, act_on, redrive_spread, task_of
from redis_queue.operate.faults import Faults
from redis_queue.operate.pages import first, sized
from redis_queue.operate.search_report import SearchReport
from redis_queue.operate.subjects import DEAD
from redis_queue.operate.verbs import DELETE, REDRIVE
from redis_queue.store.chunks import MAX_RATE, MIN_RATE
from redis_queue.store.ids import is_id


def _filter_options(task: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options, including *task*, and passes them as *only*."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            values = {item.name: kwargs.pop(item.name, None) for item in fields(Filter)}
            return function(*args, only=Filter(**values), **kwargs)

        for option in (
            task,
            click.option("--id-prefix", help="Only ids with this prefix."),
            click.option("--reason", help="Only reasons that contain this text."),
        ):
            wrapper = option(wrapper)
        return wrapper

    return add


class _Selection(Selection[Filter]):
    """Dead letters that a command changes."""

    noun, plural, at = "dead letter", "dead letters", "died"
    states = DEAD

    def find(self, queues: Sequence[AnyQueue], faults: Faults, *, exact: bool) -> list[Pair]:
        """Return pairs of queue and id; given ids are paired with every possible queue, unless *exact*."""
        if self.ids.present and not exact:
            # The action itself checks whether they are dead.
            return [(queue, id_) for queue in queues for id_ in self.ids.ids]
        scan = SearchReport()
        # Ids written by other tools may be invalid for any call.
        letters = self.conditions.letters(queues, faults, scan)
        pairs = [(queue, letter.id) for queue, letter in letters if is_id(letter.id)]
        if not pairs:
            self.explain(scan)
        ids = frozenset(self.ids.ids)
        return [pair for pair in pairs if pair[1] in ids] if self.ids.present else pairs


@click.group(cls=Group)
def dead() -> None:
    """List, redrive and delete dead letters."""


@dead.command("list", cls=StoreCommand)
@options.name
@_filter_options(options.task_part)
@options.limit()
@options.body
@options.utc
@options.as_json
@with_access
def list_(access: Access, *, name: str | None, only: Filter, limit: int, with_body: bool, as_json: bool) -> None:
    """List dead letters, oldest first in each queue.

    Example: redis-queue dead list --name orders --reason Timeout
    """
    faults, scan = Faults(), SearchReport()
    letters, more = first(only.letters(access.queues(name, faults), faults, scan), limit)
    if as_json:
        shown = {"dead": [_fields(*pair, with_body=with_body) for pair in letters], "more": more}
        end_with(faults, shown, as_json=True)
        return
    if not letters:
        nothing = scan.no_match("dead letters") if only else "no dead letters"
        show_place(access.catalog, nothing, scan.hint(only.task_part))
        end_with(faults)
        return
    heads = ("id", "queue", "died", "deliveries", "task", "reason", *(("body",) if with_body else ()))
    rows = [_row(*pair, with_body=with_body) for pair in letters]
    show_table(heads, rows, keep=("id", "died"), below=("task", "reason", "body"))
    show_count(access.catalog, len(letters), more=more)
    end_with(faults)


@dead.command(cls=StoreCommand)
@item_command
def show(access: Access, *, id: str, name: str | None, with_body: bool, as_json: bool) -> None:
    """Show one dead letter."""
    faults = Faults()
    letters = Filter(id_prefix=id).letters(access.queues(name, faults), faults)
    show_one("dead letter", id, letters, partial(_fields, with_body=with_body), faults, as_json=as_json)


@dead.command(cls=StoreCommand)
@id_arguments
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@options.name
@_filter_options(options.task)
@options.utc
@click.option(
    "--rate", type=options.Number(MIN_RATE, MAX_RATE), help="At most this many per second.  [default: all at once]"
)
@options.dry_run
@options.yes
@options.as_json
@with_access
def redrive(
    access: Access,
    *,
    ids: IdArguments,
    everything: bool,
    name: str | None,
    only: Filter,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Make dead letters ready again, with their deliveries counted from zero.

    With --rate the dead letters of each queue are delayed, one after the other, and the command does not wait.

    Example: redis-queue dead redrive --reason Timeout --rate 50
    """
    faults, selection = Faults(), _Selection(ids, only, everything)
    selection.check("give ids, or conditions like --reason, or --all")
    queues = access.queues(name, faults)
    pairs = selection.find(queues, faults, exact=dry_run)
    if dry_run:
        selection.preview(REDRIVE, len(pairs), pairs, error=faults.text(), as_json=as_json)
        return
    selection.confirm(REDRIVE, pairs, yes=yes)
    problem = partial(selection.problem, faults=faults)
    record = selection.record(access, REDRIVE, pairs, "" if rate is None else f"rate {rate:g}")
    if rate is None:
        batches = act_on(pairs, REDRIVE, access, faults)
        run_batches(REDRIVE.past, len(pairs), batches, record, as_json=as_json, problem=problem)
    else:
        run_at_once(
            REDRIVE.past,
            partial(redrive_spread, pairs, faults, rate),
            lambda: sum(size for _, size in sized(queues, _dead, Faults())),
            record,
            as_json=as_json,
            problem=problem,
        )


@dead.command(cls=StoreCommand)
@id_arguments
@options.name
@_filter_options(options.task)
@options.utc
@options.dry_run
@options.yes
@options.as_json
@with_access
def delete(
    access: Access, *, ids: IdArguments, name: str | None, only: Filter, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete dead letters by id, or those that match.

    Messages that die after the command began stay, even under the same id. To delete all: redis-queue dead purge.

    Example: redis-queue dead delete order-42 --dry-run
    """
    faults, selection = Faults(), _Selection(ids, only)
    selection.check("give ids, or conditions like --reason; dead purge deletes all")
    now = access.inspector.now()
    pairs = selection.find(access.queues(name, faults), faults, exact=dry_run)
    if dry_run:
        selection.preview(DELETE, len(pairs), pairs, error=faults.text(), as_json=as_json)
        return
    selection.confirm(DELETE, pairs, yes=yes)
    batches, problem = act_on(pairs, DELETE, access, faults, now), partial(selection.problem, faults=faults)
    record = selection.record(access, DELETE, pairs)
    run_batches(DELETE.past, len(pairs), batches, record, as_json=as_json, problem=problem)


@dead.command(cls=StoreCommand)
@purge_command
def purge(access: Access, *, name: str | None, **flags: bool) -> None:
    """Delete all dead letters, or those of the queues with this name.

    Example: redis-queue dead purge --name orders --dry-run
    """
    faults = Faults()
    counted = sized(access.queues(name, faults), _dead, faults)
    delete_all(access, "dead letters", counted, ["dead"], faults, **flags)


def _dead(queue: AnyQueue) -> int:
    return queue.stats().dead


def _row(queue: AnyQueue, letter: DeadLetter, *, with_body: bool) -> list[Any]:
    row = [letter.id, queue.name, letter.died_at, letter.deliveries, task_of(letter) or None, letter.reason]
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
