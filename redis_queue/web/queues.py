"""How deep each queue is, what is next in it, and who holds what for how long."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, render_template

from redis_queue.errors import InvalidNameError
from redis_queue.inspector import BROKEN, AnyQueue, kind_of
from redis_queue.queue.queue import RedisQueue
from redis_queue.web import request_args
from redis_queue.web.context import context
from redis_queue.web.queue_lookup import queue_of

pages = Blueprint("queues", __name__)

KINDS: Final = ("queue", "delay")
NEXT: Final = 20
NEXT_BYTES: Final = 256 * 1024
"""Most bytes read of the next messages; their records contain the time of the put."""
ROWS: Final = 50
MOST_OFFSET: Final = 10_000_000


@pages.get("/queues")
def show() -> str:
    """List all queues."""
    request_args.only("name", "offset")
    name, offset = request_args.text("name"), request_args.number("offset", 0, 0, MOST_OFFSET)
    inspector = context().inspector
    listing = inspector.listing(name or "", offset=offset, limit=ROWS)
    return render_template("queues.html", overview=inspector.overview(listing.known), listing=listing, name=name)


@pages.get("/queue")
def one() -> str:
    """Show one queue."""
    request_args.only("kind", "name", "offset")
    kind, name = request_args.choice("kind", KINDS, "queue"), request_args.text("name", exact=True)
    if name is None:
        raise InvalidNameError("Which queue? Choose one from the list of all queues.")
    offset = request_args.number("offset", 0, 0, MOST_OFFSET)
    inspector = context().inspector
    known = inspector.find("queue" if kind == "queue" else "delay", name)
    row = None if known is None else inspector.queues([known])[0]
    if row is not None and row.error:
        # By the registry it may be one that cannot be opened.
        return render_template("queue.html", queue=row, kind=kind, row=row, now=inspector.now())
    queue = queue_of(kind, name)
    held = queue.in_flight(offset=offset, limit=ROWS + 1)
    return render_template(
        "queue.html",
        queue=queue,
        kind=kind_of(queue),
        row=row,
        next=queue.peek(NEXT, max_bytes=NEXT_BYTES)
        if isinstance(queue, RedisQueue)
        else queue.list(limit=NEXT, max_bytes=0),
        held=held[:ROWS],
        offset=offset,
        more=len(held) > ROWS,
        rows=ROWS,
        expired=inspector.expired(queue),
        dispatched=_dispatched(queue),
        quarantined=queue.quarantined(limit=NEXT, max_bytes=0),
        now=inspector.now(),
    )


def _dispatched(queue: AnyQueue) -> int | None:
    """Return how many a dispatcher sent; None where no dispatcher ever did: then entries are acked."""
    if isinstance(queue, RedisQueue):
        return None
    try:
        return queue.dispatch_log.totals().sent or None
    except BROKEN:
        return None
