"""``redis-queue quarantine``: unreadable records."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from redis_queue.catalog import kind_of
from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.actions import purge as delete_all
from redis_queue.cli.actions import purge_command
from redis_queue.cli.listing import item_command, show_one
from redis_queue.cli.output import show_count, show_table
from redis_queue.cli.report import end_with
from redis_queue.model import Quarantined
from redis_queue.operate.access import Access
from redis_queue.operate.listing import InQueue, first, quarantined, sized
from redis_queue.operate.queue_row import Faults


@click.group(cls=Group)
def quarantine() -> None:
    """List and delete unreadable records."""


@quarantine.command("list", cls=StoreCommand)
@options.name
@options.limit()
@options.utc
@options.as_json
@with_access
def list_(access: Access, *, name: str | None, limit: int, as_json: bool) -> None:
    """List unreadable records, and why they cannot be read.

    Example: redis-queue quarantine list --name orders
    """
    faults = Faults()
    records, more = first(quarantined(access.queues(name, faults), faults), limit)
    if as_json:
        shown = {"quarantined": [_fields(pair, with_body=False) for pair in records], "more": more}
        end_with(faults, shown, as_json=True)
        return
    heads = ("id", "queue", "found", "bytes", "reason")
    rows = [(record.id, queue.name, record.found_at, len(record.raw), record.reason) for queue, record in records]
    show_table(heads, rows, keep=("id", "found"), below=("reason",))
    show_count(access.catalog, len(records), more=more)
    end_with(faults)


@quarantine.command(cls=StoreCommand)
@item_command
def show(access: Access, *, id: str, name: str | None, with_body: bool, as_json: bool) -> None:
    """Show one record; with --body its bytes, escaped."""
    faults = Faults()
    records = ((pair[1].id, pair) for pair in quarantined(access.queues(name, faults), faults))
    show_one("record in quarantine", id, records, partial(_fields, with_body=with_body), faults, as_json=as_json)


@quarantine.command(cls=StoreCommand)
@purge_command
def purge(access: Access, *, name: str | None, **flags: bool) -> None:
    """Delete all records in quarantine, or those of the queues with this name.

    Example: redis-queue quarantine purge --name orders --dry-run
    """
    faults = Faults()
    counted = sized(access.queues(name, faults), lambda queue: queue.stats().quarantined, faults)
    delete_all(access, "records", counted, ["quarantine"], faults, **flags)


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
