"""What waits, what runs, what died; how late and how much."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from flask import Blueprint, render_template

from redis_queue.console.faults import Faults
from redis_queue.delay import DelayQueue
from redis_queue.inspector import BROKEN, AnyQueue, Overview, kind_of
from redis_queue.web import asked
from redis_queue.web.charts import HEIGHT, WIDTH, bars, nice
from redis_queue.web.desk import desk

pages = Blueprint("overview", __name__)

MINUTES = 60
RECENT = 5


@pages.get("/")
def show() -> str:
    """Show the overview."""
    asked.only()
    inspector = desk().inspector
    overview = inspector.overview()
    queues = desk().access.queues()
    return render_template(
        "overview.html",
        overview=overview,
        oldest=min((row.oldest_at for row in overview.queues if row.kind == "delay" and row.oldest_at), default=None),
        next_due=min((row.next_due for row in overview.queues if row.next_due), default=None),
        plots=[plot for queue in queues if isinstance(queue, DelayQueue) for plot in _plots(queue)],
        recent=_recent(overview, queues),
        width=WIDTH,
        height=HEIGHT,
    )


def _plots(queue: DelayQueue) -> list[dict[str, Any]]:
    try:
        minutes, total = queue.minutes(MINUTES), queue.dispatches()
    except BROKEN:
        # One broken queue must not hide the others; its row says why.
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


def _recent(overview: Overview, queues: Sequence[AnyQueue]) -> list[tuple[str, str, datetime, str, str]]:
    """Return the last few dead letters of all queues: kind, queue, when, id, reason."""
    rows = {(row.kind, row.name): row for row in overview.queues if row.dead and not row.error}
    found: list[tuple[str, str, datetime, str, str]] = []
    for queue in queues:
        row = rows.get((kind_of(queue), queue.name))
        if row is not None:
            # The page of dead letters says what is wrong with one that cannot be read.
            with Faults().of_queue(queue):
                letters = queue.dead_letters(offset=max(0, row.dead - RECENT), limit=RECENT, max_bytes=0)
                found += [(row.kind, row.name, letter.died_at, letter.id, letter.reason) for letter in letters]
    return sorted(found, key=lambda letter: letter[2], reverse=True)[:RECENT]
