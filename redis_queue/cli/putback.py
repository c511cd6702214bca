"""``redis-queue putback``: put back expired leases of all queues."""

from __future__ import annotations

from typing import Final

import click

from redis_queue.catalog import put_back_each
from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access
from redis_queue.cli.report import INTERRUPTED, report
from redis_queue.model import PutBack
from redis_queue.operate.access import Access
from redis_queue.operate.faults import Faults
from redis_queue.operate.listing import sized
from redis_queue.store.chunks import CHUNK

MOST_ERRORS: Final = 5
"""Most errors in the report."""


@click.command(cls=StoreCommand)
@options.name
@options.dry_run
@options.as_json
@with_access
def putback(access: Access, *, name: str | None, dry_run: bool, as_json: bool) -> None:
    """Put back the messages of expired leases, in all queues or those with one name.

    You can run several at once. An error in one queue does not stop the others.

    Example: redis-queue putback --dry-run
    """
    if dry_run:
        faults = Faults()
        expired = sized(access.queues(name, faults), access.inspector.expired, faults)
        report("expired", sum(size for _, size in expired), error=faults.text(), as_json=as_json)
        return
    back, errors = PutBack(), []
    try:
        for served in put_back_each(access.catalog, access.catalog.known(name), step=CHUNK):
            back += served.back
            if served.error is not None:
                errors.append(f"{served.name}: {served.error}")
    except KeyboardInterrupt:
        errors.append(INTERRUPTED)
    shown = [*errors[:MOST_ERRORS], *([f"{len(errors) - MOST_ERRORS:,} more errors"] if errors[MOST_ERRORS:] else [])]
    report("returned", back.returned, error="; ".join(shown), as_json=as_json, more={"dead": back.dead})
