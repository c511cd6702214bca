"""``redis-queue stats`` and ``redis-queue queues``: counts of all queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

import click

from redis_queue.basics.times import span_text
from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access
from redis_queue.cli.output import harmless, show_fields, show_json, show_location, show_table, wants_json
from redis_queue.operate.access import Access
from redis_queue.operate.celery_queues import RATE_MINUTES
from redis_queue.operate.queue_row import CeleryQueueRow, Count, Overview, QueueRow

SIZES: Final[tuple[Count, ...]] = ("ready", "delayed", "in_flight", "dead", "quarantined")
OTHERS: Final = "choose another Redis with --url or REDIS_QUEUE_URL, another prefix with --prefix or REDIS_QUEUE_PREFIX"

TOTALS: Final[tuple[Count, ...]] = ("put", "dispatched", "acked", "redelivered")

FOR_PLACE: Final = "for a place"
"""Head of the column of ready messages that wait for a place in a flow."""


@click.command(cls=StoreCommand)
@options.utc
@options.as_json
@with_access
def stats(access: Access) -> None:
    """Add up the counts of all queues: with an app, also those of Celery's queues.

    Example: redis-queue stats --json
    """
    overview, _ = access.overview()
    counts: dict[str, Any] = {count: overview.total(count) for count in (*SIZES, *TOTALS)}
    known = {"redis": access.catalog.url, "prefix": access.catalog.prefix, "queues": len(overview.queues), **counts}
    times = {
        "oldest_at": min((row.oldest_at for row in overview.queues if row.oldest_at), default=None),
        "next_due": min((row.next_due for row in overview.queues if row.next_due), default=None),
    }
    if wants_json():
        show_json({"at": overview.at, **known, **times, "errors": _errors(overview)})
        return
    show_fields({**known, "oldest": _since(times["oldest_at"], overview.at), "next due": times["next_due"]})
    if access.celery_queues is None:
        click.echo("not counted: Celery's queues, which need -A APP")
    _print_errors(overview)


@click.command(cls=StoreCommand)
@options.as_json
@with_access
def queues(access: Access) -> None:
    """List all queues: with an app, Celery's queues first.

    For a DelayQueue (kind "delay"), ready counts the due entries.

    Example: redis-queue queues
    """
    overview = access.inspector.overview()
    celery = access.celery_queues.overview().rows if access.celery_queues is not None else []
    if wants_json():
        rows = [*map(asdict, celery), *map(asdict, overview.queues)]
        show_json({"at": overview.at, "queues": rows})
        return
    _print_celery(celery)
    if not overview.queues:
        click.echo(harmless(f"no queues under the prefix {access.catalog.prefix!r} in {access.catalog.url}"))
        click.echo(OTHERS if access.app is None else "the settings of the app choose the Redis and the prefix")
        return
    heads = ("queue", "kind", "ready", "delayed", "in flight", "dead", "quar.", "oldest", "")
    show_table(heads, [_row(row, overview.at) for row in overview.queues if not row.error])
    show_location(access.catalog)
    _print_errors(overview)


def _print_celery(rows: Sequence[CeleryQueueRow]) -> None:
    if not rows:
        return
    heads = ["Celery queue", "ready", "in flight", "workers", f"per min, {RATE_MINUTES} min", "oldest", ""]
    limited = any(row.waiting_for_place for row in rows)
    cells = [_celery_row(row, limited=limited) for row in rows if not row.error]
    show_table([*heads, *([FOR_PLACE] if limited else [])], cells, below=(FOR_PLACE,))
    for row in rows:
        if row.error:
            click.echo(f"error: {harmless(row.name)}: {harmless(row.error)}", err=True)
    click.echo()


def _celery_row(row: CeleryQueueRow, *, limited: bool) -> list[Any]:
    oldest = span_text(None if row.oldest_age is None else timedelta(seconds=row.oldest_age))
    rate = None if row.executed_per_minute is None else round(row.executed_per_minute)
    cells = [row.name, row.ready, row.in_flight, row.consumers, rate, oldest, "no worker" if row.is_unconsumed else ""]
    return [*cells, row.waiting_for_place or None] if limited else cells


def _row(row: QueueRow, now: datetime) -> list[Any]:
    counts = [getattr(row, count) for count in SIZES]
    return [row.name, row.kind, *counts, _since(row.oldest_at, now), "paused" if row.paused else ""]


def _since(at: datetime | None, now: datetime) -> str:
    return span_text(None if at is None else now - at)


def _errors(overview: Overview) -> dict[str, str]:
    return {f"{row.kind}:{row.name}": row.error for row in overview.queues if row.error}


def _print_errors(overview: Overview) -> None:
    for name, error in _errors(overview).items():
        click.echo(f"error: {harmless(name)}: {harmless(error)}", err=True)
