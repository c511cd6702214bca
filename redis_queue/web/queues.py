"""The pages of queues, and that of one Celery queue, whose messages are moved and deleted with a preview."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flask import Blueprint, render_template

from redis_queue.catalog import KINDS, AnyQueue, kind_of
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import ConfigurationError, InvalidNameError
from redis_queue.operate.celery_queues import CeleryQueues
from redis_queue.operate.flows import LimitsRow, flow_of_queue, has_limits, paused_queues
from redis_queue.operate.items import Messages
from redis_queue.operate.queue_row import BROKEN, SORTS, sort_rows
from redis_queue.web import request_args
from redis_queue.web.charts import plot_of
from redis_queue.web.context import context, page
from redis_queue.web.request_args import ROWS

pages = Blueprint("queues", __name__)

MAX_SORTED: Final = 400
"""Maximum number of queues that are counted to sort them."""

CHOOSE: Final = "a queue from the list of all queues"

NEXT: Final = 20
NEXT_BYTES: Final = 256 * 1024
"""Maximum bytes read of the next messages; records contain the time of the put."""


@pages.get("/queues")
def show() -> str:
    """List all queues, those of Celery first."""
    request_args.allow("name", "offset", "celery", "sort")
    name, offset = request_args.text("name"), request_args.offset()
    sort = request_args.choice("sort", SORTS, SORTS[0])
    celery_offset = request_args.number("celery", 0, 0, request_args.MAX_OFFSET)
    access = context().access
    celery = access.celery_queues
    # The first ones are counted before they are paged; those after them come by name.
    is_sorted = offset < MAX_SORTED and sort != "kind"
    start, limit = (0, MAX_SORTED) if is_sorted else (offset, ROWS)
    listing = access.catalog.listing(name or "", offset=start, limit=limit)
    overview = access.inspector.overview(listing.known)
    rows = sort_rows(overview.queues, sort)[offset - start :][:ROWS]
    end = offset + len(rows)
    return render_template(
        "queues.html",
        celery=None if celery is None else celery.overview(name or "", offset=celery_offset, limit=ROWS, order=sort),
        celery_offset=celery_offset,
        paused=set() if celery is None else paused_queues(access),
        overview=replace(overview, queues=rows),
        listing=listing,
        offset=offset,
        next=end if rows and end < listing.total else None,
        sort=sort,
        most=MAX_SORTED,
        name=name,
    )


@pages.get("/queue")
def one() -> str:
    """Show one queue."""
    request_args.allow("kind", "name", "offset")
    kind, name = request_args.choice("kind", KINDS, "queue"), request_args.required("name", CHOOSE)
    offset = request_args.offset()
    access = context().access
    known = access.catalog.find("queue" if kind == "queue" else "delay", name)
    row = None if known is None else access.inspector.queues([known])[0]
    if row is not None and row.error:
        # Its settings in the registry may be invalid.
        return page("queue.html", queue=row, kind=kind, row=row)
    queue = access.queue(kind, name)
    held = queue.in_flight(offset=offset, limit=ROWS + 1)
    return page(
        "queue.html",
        queue=queue,
        kind=kind_of(queue),
        row=row,
        next=queue.peek(NEXT, max_bytes=NEXT_BYTES)
        if not isinstance(queue, DelayQueue)
        else queue.list(limit=NEXT, max_bytes=0),
        held=held[:ROWS],
        offset=offset,
        more=len(held) > ROWS,
        rows=ROWS,
        expired=access.inspector.expired(queue),
        dispatched=_dispatched(queue),
        plot=plot_of(queue.name) if kind == "delay" else None,
        quarantined=queue.quarantined(limit=NEXT, max_bytes=0),
    )


def _dispatched(queue: AnyQueue) -> int | None:
    """Return how many entries dispatchers have sent; None without dispatches: then entries are acked."""
    if not isinstance(queue, DelayQueue):
        return None
    try:
        return queue.dispatch_log.totals().sent or None
    except BROKEN:
        return None


MESSAGE_CONDITIONS: Final = {"task": "task_part", "id_prefix": "id_prefix", "text": "text"}
"""Fields of the form, and the conditions that they set."""


@pages.get("/celery-queue")
def celery() -> str:
    """Show one queue, and its messages that match the search."""
    request_args.allow("name", *MESSAGE_CONDITIONS, "after", "limit", "body")
    access, queues = context().access, context().access.celery_queues
    if queues is None:
        raise InvalidNameError("Celery's queues need an app: redis-queue -A APP web")
    name = request_args.required("name", CHOOSE)
    messages, start = Messages(access, name, request_args.conditions(MESSAGE_CONDITIONS)), request_args.cursor()
    row, found, flow = queues.row(name), {}, flow_of_queue(access, name)
    if not row.error:
        try:
            found = request_args.searched(
                messages, MESSAGE_CONDITIONS, start, "no message waits", request_args.cursor_text
            )
        except ConfigurationError as error:
            found = {"why": f"Messages are not shown: {error}."}
    return page(
        "celery_queue.html",
        row=row,
        unknown="" if row.error or row.ready else _unknown(queues, name),
        flow=flow,
        limits="" if flow is None or not has_limits(flow) else LimitsRow.of(flow.limits).text,
        reach=Messages.reach,
        **found,
    )


def _unknown(queues: CeleryQueues, name: str) -> str:
    try:
        queues.check(name)
    except InvalidNameError as error:
        return str(error)
    return ""
