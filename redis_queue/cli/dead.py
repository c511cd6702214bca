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
from redis_queue.cli.listing import conditions, item_command, show_listing, show_one
from redis_queue.cli.output import shown_body
from redis_queue.operate.access import Access
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.items import Letter, Letters
from redis_queue.operate.listing import Conditions, sized
from redis_queue.operate.queue_row import Faults


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
@conditions("dead letters", options.task_part)
def list_(access: Access, *, name: str | None, only: Conditions, limit: int, with_body: bool, as_json: bool) -> None:
    """List dead letters, oldest first in each queue.

    Example: redis-queue dead list --name orders --reason Timeout
    """
    faults = Faults()
    body = {"body": lambda found: shown_body(found.letter.body)} if with_body else {}
    show_listing(
        access,
        "dead",
        Letters(access, name, only, faults),
        limit,
        partial(_fields, with_body=with_body),
        {
            "id": lambda found: found.id,
            "queue": lambda found: found.queue.name,
            "died": lambda found: found.letter.died_at,
            "deliveries": lambda found: found.letter.deliveries,
            "task": lambda found: found.task or None,
            "reason": lambda found: found.reason,
            **body,
        },
        keep=("id", "died"),
        below=("task", "reason", "body"),
        nothing="no dead letters",
        as_json=as_json,
        faults=faults,
    )


@dead.command(cls=StoreCommand)
@item_command
def show(access: Access, *, id: str, name: str | None, with_body: bool, as_json: bool) -> None:
    """Show one dead letter."""
    faults = Faults()
    letters = ((letter.id, letter) for letter in Letters(access, name, Conditions(id_prefix=id), faults).all())
    show_one("dead letter", id, letters, partial(_fields, with_body=with_body), faults, as_json=as_json)


for _verb in ("redrive", "delete"):
    dead.add_command(
        rows_command(
            ACTIONS["dead", _verb],
            id_arguments,
            options.name,
            conditions("dead letters"),
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


def _fields(found: Letter, *, with_body: bool) -> dict[str, Any]:
    letter = found.letter
    known = {
        "id": letter.id,
        "queue": found.queue.name,
        "kind": kind_of(found.queue),
        "died_at": letter.died_at,
        "deliveries": letter.deliveries,
        "reason": letter.reason,
        "task": found.task or None,
    }
    return {**known, "headers": dict(letter.headers), "body": letter.body} if with_body else known
