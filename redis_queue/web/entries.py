"""The page of waiting entries: search and actions."""

from __future__ import annotations

import base64
from typing import Final

from flask import Blueprint, abort, render_template

from redis_queue.operate.entries import Entries
from redis_queue.store.ids import id_bytes, id_text, is_id
from redis_queue.web import request_args
from redis_queue.web.context import context
from redis_queue.web.queue_lookup import delay_queues

pages = Blueprint("entries", __name__)

ROWS: Final = 50
MOST_ROWS: Final = 100
MAX_CURSOR: Final = 4000

CONDITIONS: Final = {
    "task": "task_part",
    "to": "queue",
    "id_prefix": "id_prefix",
    "text": "text",
    "due_before": "due_before",
    "due_after": "due_after",
}
"""Fields of the form, and the conditions that they set."""


@pages.get("/scheduled")
def show() -> str:
    """Show waiting entries that match the search, by due time."""
    request_args.allow("queue", *CONDITIONS, "after", "limit", "body")
    queue, names = delay_queues(request_args.text("queue", exact=True))
    conditions = request_args.conditions(CONDITIONS)
    limit = request_args.number("limit", ROWS, 1, MOST_ROWS)
    after = _decoded(request_args.text("after", most=MAX_CURSOR))
    listing = Entries(context().access, queue, conditions)
    page = listing.page(after, limit)
    return render_template(
        "entries.html",
        queue=queue,
        names=names,
        page=page,
        nothing="".join(listing.nothing("no entries wait")),
        after=None if page.next is None else _encoded(page.next),
        **request_args.search(CONDITIONS),
        now=context().inspector.now(),
        total=listing.count(),
        is_id=is_id,
    )


def _encoded(cursor: str) -> str:
    # Ids from other tools may hold any bytes, and surrounding white space counts.
    return base64.urlsafe_b64encode(id_bytes(cursor)).decode()


def _decoded(cursor: str | None) -> str | None:
    try:
        return None if cursor is None else id_text(base64.b64decode(cursor, altchars=b"-_", validate=True))
    except ValueError:
        abort(400, "after: invalid cursor; use the link at the end of a page.")
