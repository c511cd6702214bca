"""``redis-queue dead``: the dead letters of both kinds of queues."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from redis_queue.catalog import AnyQueue, kind_of
from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.actions import id_arguments, purge_command, rows_command
from redis_queue.cli.actions import purge as delete_all
from redis_queue.cli.conditions import conditions
from redis_queue.cli.output import show_count, show_place, show_table, shown_body
from redis_queue.cli.report import end_with
from redis_queue.cli.single_item import item_command, show_one
from redis_queue.model import DeadLetter
from redis_queue.operate.access import Access
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.dead_letters import Filter, task_of
from redis_queue.operate.faults import Faults
from redis_queue.operate.pages import first, sized
from redis_queue.operate.search_report import SearchReport


@click.group(cls=Group)
def dead() -> None:
    """List, redrive and delete dead letters."""


@dead.command("list", cls=StoreCommand)
@options.name
@options.limit()
@options.body
@options.utc
@options.as_json
@with_access
@conditions(Filter, options.task_part)
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


for _verb in ("redrive", "delete"):
    dead.add_command(
        rows_command(
            ACTIONS["dead", _verb],
            id_arguments,
            options.name,
            conditions(Filter),
            scope=lambda _, values: {"name": values.pop("name")},
        )
    )


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
