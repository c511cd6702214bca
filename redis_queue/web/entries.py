"""The page of waiting entries: search and actions."""

from __future__ import annotations

import base64
from typing import Any, Final

from flask import Blueprint, abort, render_template, request

from redis_queue.operate import entries
from redis_queue.operate.entries import Conditions
from redis_queue.operate.search_report import SearchReport
from redis_queue.store.ids import id_bytes, id_text, is_id
from redis_queue.web import request_args
from redis_queue.web.context import context
from redis_queue.web.queue_lookup import delay_queues

pages = Blueprint("entries", __name__)

ROWS: Final = 50
MOST_ROWS: Final = 100
MAX_CURSOR: Final = 4000

CONDITIONS: Final = ("task", "to", "id_prefix", "text", "due_before", "due_after")


@pages.get("/scheduled")
def show() -> str:
    """Show waiting entries that match the search, by due time."""
    request_args.allow("queue", *CONDITIONS, "after", "limit", "body")
    queue, names = delay_queues(request_args.text("queue", exact=True))
    conditions = conditions_of(request.args)
    limit = request_args.number("limit", ROWS, 1, MOST_ROWS)
    after = _decoded(request_args.text("after", most=MAX_CURSOR))
    scan = SearchReport()
    page = entries.page(context().access, queue, conditions, after, limit, scan=scan)
    return render_template(
        "entries.html",
        queue=queue,
        names=names,
        page=page,
        nothing=f"{scan.no_match('entries')}{scan.hint(conditions.task_part)}" if conditions else "no entries wait",
        after=None if page.next is None else _encoded(page.next),
        search={name: request.args.get(name, "").strip() for name in CONDITIONS},
        link={name: value for name, value in request.args.items() if name != "after" and value},
        first=after is None,
        now=context().inspector.now(),
        total=entries.count(context().access, queue, conditions),
        with_body=request_args.flag("body"),
        is_id=is_id,
    )


def conditions_of(values: Any) -> Conditions:
    """Return the conditions of a form or an address."""
    return Conditions(
        task_part=request_args.text("task", values),
        queue=request_args.text("to", values),
        id_prefix=request_args.text("id_prefix", values),
        text=request_args.text("text", values),
        due_before=request_args.when("due_before", values),
        due_after=request_args.when("due_after", values),
    )


def _encoded(cursor: str) -> str:
    # Ids from other tools may hold any bytes, and surrounding white space counts.
    return base64.urlsafe_b64encode(id_bytes(cursor)).decode()


def _decoded(cursor: str | None) -> str | None:
    try:
        return None if cursor is None else id_text(base64.b64decode(cursor, altchars=b"-_", validate=True))
    except ValueError:
        abort(400, "after: invalid cursor; use the link at the end of a page.")
