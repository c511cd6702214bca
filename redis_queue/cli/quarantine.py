"""``redis-queue quarantine``: unreadable records."""

from __future__ import annotations

from typing import Any

import click

from redis_queue.catalog import kind_of
from redis_queue.cli import options
from redis_queue.cli.access import Group
from redis_queue.cli.actions import purge as delete_all
from redis_queue.cli.actions import purge_command
from redis_queue.cli.listing import item_command, show_item, show_rows
from redis_queue.model import Quarantined
from redis_queue.operate.access import Access
from redis_queue.operate.listing import InQueue, first, quarantined
from redis_queue.operate.queue_row import Faults


@click.group(cls=Group)
def quarantine() -> None:
    """List and delete unreadable records."""


@quarantine.command("list")
@options.name
@options.limit()
@options.output
def list_(access: Access, *, name: str | None, limit: int) -> None:
    """List unreadable records, and why they cannot be read.

    Example: redis-queue quarantine list --name orders
    """
    faults = Faults()
    records, more = first(quarantined(access.queues(name, faults), faults), limit)
    show_rows(
        access,
        {"quarantined": [_fields(pair, with_body=False) for pair in records], "more": more},
        {"id": "id", "queue": "queue", "found": "found_at", "bytes": "bytes", "reason": "reason"},
        keep=("id", "found"),
        below=("reason",),
        more=more,
        error=faults.text(),
    )


@quarantine.command()
@item_command
def show(access: Access, *, id: str, name: str | None, with_body: bool) -> None:
    """Show one record; with --body its bytes, escaped."""
    faults = Faults()
    records = quarantined(access.queues(name, faults), faults)
    found = next((_fields(pair, with_body=with_body) for pair in records if pair[1].id == id), None)
    show_item(found, f"no record in quarantine: {id!r}", faults.text())


@quarantine.command()
@purge_command
def purge(access: Access, *, name: str | None, **flags: bool) -> None:
    """Delete all records in quarantine, or those of the queues with this name.

    Example: redis-queue quarantine purge --name orders --dry-run
    """
    delete_all(access, {"name": name, "places": ["quarantine"], "noun": "records"}, **flags)


def _fields(pair: InQueue[Quarantined], *, with_body: bool) -> dict[str, Any]:
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
