"""``redis-queue dead`` and ``quarantine``: dead letters and unreadable records of both kinds of queues."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import click

from redis_queue.basics.options import Conditions
from redis_queue.catalog import kind_of
from redis_queue.cli import options
from redis_queue.cli.access import Group
from redis_queue.cli.actions import id_arguments, purge_command, rows_command
from redis_queue.cli.actions import purge as delete_all
from redis_queue.cli.listing import Column, conditions, item_command, show_item, show_listing, show_rows
from redis_queue.cli.output import localized, wants_json
from redis_queue.model import Quarantined
from redis_queue.operate.access import Access
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.items import Letter, Letters
from redis_queue.operate.listing import InQueue, first, quarantined
from redis_queue.operate.queue_row import Faults

COLUMNS: Final[dict[str, Column]] = {
    "id": "id",
    "queue": "queue",
    "died": "died_at",
    "deliveries": "deliveries",
    "task": "task",
    "reason": lambda row: localized(row["reason"]),
}


@click.group(cls=Group)
def dead() -> None:
    """List, redrive and delete dead letters."""


@dead.command("list")
@options.name
@options.limit()
@options.body
@options.output
@conditions("dead letters", options.task_part)
def list_(access: Access, *, name: str | None, only: Conditions, limit: int, with_body: bool) -> None:
    """List dead letters, oldest first in each queue.

    Example: redis-queue dead list --name orders --reason Timeout
    """
    show_listing(
        access,
        "dead",
        Letters(access, name, only),
        partial(_fields, with_body=with_body),
        {**COLUMNS, **({"body": "body"} if with_body else {})},
        limit=limit,
        keep=("id", "died"),
        below=("task", "reason", "body"),
        nothing="no dead letters",
    )


@dead.command()
@item_command
def show(access: Access, *, id: str, name: str | None, with_body: bool) -> None:
    """Show one dead letter."""
    letters = Letters(access, name, Conditions(id_prefix=id))
    found = next((_fields(letter, with_body=with_body) for letter in letters.all() if letter.id == id), None)
    show_item(found, f"no dead letter: {id!r}", letters.report.faults.text())


for _verb in ("redrive", "delete"):
    dead.add_command(rows_command(ACTIONS["dead", _verb], id_arguments, options.name, conditions("dead letters")))


@dead.command()
@purge_command
def purge(access: Access, *, name: str | None, **flags: bool) -> None:
    """Delete all dead letters, or those of the queues with this name.

    Example: redis-queue dead purge --name orders --dry-run
    """
    delete_all(access, {"name": name, "places": ["dead"], "noun": "dead letters"}, **flags)


def _fields(found: Letter, *, with_body: bool) -> dict[str, Any]:
    letter = found.letter
    known = {
        "id": letter.id,
        "queue": found.queue.name,
        "kind": kind_of(found.queue),
        "died_at": letter.died_at,
        "deliveries": letter.deliveries,
        "reason": letter.reason if wants_json() else localized(letter.reason),
        "task": found.task or None,
    }
    return {**known, "headers": dict(letter.headers), "body": letter.body} if with_body else known


@click.group(cls=Group)
def quarantine() -> None:
    """List and delete unreadable records."""


@quarantine.command("list")
@options.name
@options.limit()
@options.output
def list_unreadable(access: Access, *, name: str | None, limit: int) -> None:
    """List unreadable records, and why they cannot be read.

    Example: redis-queue quarantine list --name orders
    """
    faults = Faults()
    records, more = first(quarantined(access.queues(name, faults), faults), limit)
    show_rows(
        access,
        {"quarantined": [_unreadable_fields(pair, with_body=False) for pair in records], "more": more},
        {"id": "id", "queue": "queue", "found": "found_at", "bytes": "bytes", "reason": "reason"},
        keep=("id", "found"),
        below=("reason",),
        more=more,
        error=faults.text(),
    )


@quarantine.command("show")
@item_command
def show_unreadable(access: Access, *, id: str, name: str | None, with_body: bool) -> None:
    """Show one record; with --body its bytes, escaped."""
    faults = Faults()
    records = quarantined(access.queues(name, faults), faults)
    found = next((_unreadable_fields(pair, with_body=with_body) for pair in records if pair[1].id == id), None)
    show_item(found, f"no record in quarantine: {id!r}", faults.text())


@quarantine.command("purge")
@purge_command
def purge_unreadable(access: Access, *, name: str | None, **flags: bool) -> None:
    """Delete all records in quarantine, or those of the queues with this name.

    Example: redis-queue quarantine purge --name orders --dry-run
    """
    delete_all(access, {"name": name, "places": ["quarantine"], "noun": "records"}, **flags)


def _unreadable_fields(pair: InQueue[Quarantined], *, with_body: bool) -> dict[str, Any]:
    queue, record = pair
    known = {
        "id": record.id,
        "queue": queue.name,
        "kind": kind_of(queue),
        "found_at": record.found_at,
        "bytes": len(record.raw),
        "reason": record.reason,
    }
    return {**known, "raw": record.raw} if with_body else known
