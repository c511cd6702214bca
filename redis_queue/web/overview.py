"""The overview page: counts, dispatches of the last hour, last dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from flask import Blueprint, render_template

from redis_queue.catalog import MOST_ROWS
from redis_queue.delay.queue import DelayQueue
from redis_queue.operate.faults import BROKEN, Faults
from redis_queue.operate.queue_row import QueueRow
from redis_queue.store.registry import Known
from redis_queue.store.settings import Settings
from redis_queue.web import request_args
from redis_queue.web.charts import HEIGHT, WIDTH, bars, nice
from redis_queue.web.context import context
from redis_queue.web.queue_lookup import MOST_QUEUES

pages = Blueprint("overview", __name__)

MINUTES = 60
RECENT = 5
MOST_RECENT_OF = 20
"""Most queues from which recent dead letters are read."""

MOST_PLOTS = 20
"""Most DelayQueues with charts."""


@pages.get("/")
def show() -> str:
    """Show the overview."""
    request_args.allow()
    inspector = context().inspector
    listing = inspector.catalog.listing(limit=MOST_QUEUES)
    overview = inspector.overview(listing.known)
    rows = overview.queues
    dispatching = [row.name for row in rows if row.kind == "delay" and not row.error][:MOST_PLOTS]
    return render_template(
        "overview.html",
        overview=overview,
        table=replace(overview, queues=rows[:MOST_ROWS]),
        more=listing.total + listing.unseen - len(rows),
        oldest=min((row.oldest_at for row in overview.queues if row.kind == "delay" and row.oldest_at), default=None),
        next_due=min((row.next_due for row in overview.queues if row.next_due), default=None),
        plots=[plot for name in dispatching for plot in _plots(name)],
        recent=_recent(rows, listing.known),
        width=WIDTH,
        height=HEIGHT,
    )


def _plots(name: str) -> list[dict[str, Any]]:
    try:
        # The counts of dispatchers are stored with the first shard.
        queue = context().catalog.open(Known("delay", name, Settings().max_deliveries, 1))
        assert isinstance(queue, DelayQueue)  # noqa: S101 - the kind says so
        minutes, total = queue.dispatch_log.minutes(MINUTES), queue.dispatch_log.totals()
    except BROKEN:
        # A broken queue must not hide the others; its row shows the error.
        return []
    sent, worst = [minute.sent for minute in minutes], [minute.worst_seconds for minute in minutes]
    if not total.sent and not total.failed:
        return []
    return [
        {
            "queue": queue.name,
            "minutes": minutes,
            "total": total,
            "sent": bars(sent, nice(max(sent))),
            "most_sent": nice(max(sent)),
            "worst": bars(worst, nice(max(worst))),
            "most_late": nice(max(worst)),
            "quantiles": [(share, total.lateness.quantile(share)) for share in (0.5, 0.95, 0.99)],
        }
    ]


def _recent(rows: Sequence[QueueRow], known: Sequence[Known]) -> list[tuple[str, str, datetime, str, str]]:
    """Return the latest dead letters of the queues with the most: kind, queue, time, id, reason."""
    dead = [(row, one) for row, one in zip(rows, known, strict=True) if row.dead and not row.error]
    dead.sort(key=lambda pair: -pair[0].dead)
    found: list[tuple[str, str, datetime, str, str]] = []
    for row, one in dead[:MOST_RECENT_OF]:
        # The page of dead letters shows the errors of unreadable queues.
        with Faults().of(one.kind, one.name):
            queue = context().catalog.open(one)
            letters = queue.dead_letters(offset=max(0, row.dead - RECENT), limit=RECENT, max_bytes=0)
            found += [(row.kind, row.name, letter.died_at, letter.id, letter.reason) for letter in letters]
    return sorted(found, key=lambda letter: letter[2], reverse=True)[:RECENT]
