"""The page of dead letters: search and actions."""

from __future__ import annotations

import re
from typing import Any, Final

from flask import Blueprint, abort, render_template, request

from redis_queue.catalog import kind_of
from redis_queue.operate.actions.stored import reference
from redis_queue.operate.dead_letters import Filter, LetterCursor, as_task, page_of
from redis_queue.operate.faults import Faults
from redis_queue.operate.search_report import SearchReport
from redis_queue.store.ids import is_id
from redis_queue.web import request_args
from redis_queue.web.context import context
from redis_queue.web.queue_lookup import MOST_NAMES

pages = Blueprint("dead_letters", __name__)

ROWS: Final = 50
MOST_ROWS: Final = 100

CONDITIONS: Final = ("reason", "task", "id_prefix")

_PLACE = re.compile(r"(\d{1,6})\.(\d{1,9})", re.ASCII)


@pages.get("/dead")
def show() -> str:
    """Show dead letters that match the search, oldest first in each queue."""
    request_args.allow("name", *CONDITIONS, "after", "limit", "body")
    name = request_args.text("name", exact=True)
    faults = Faults()
    conditions, place = filter_of(request.args), _place(request_args.text("after"))
    scan = SearchReport()
    limit = request_args.number("limit", ROWS, 1, MOST_ROWS)
    page, counts = page_of(context().access, conditions, name, place, limit, faults=faults, scan=scan)
    listing = context().catalog.listing(limit=MOST_NAMES)
    return render_template(
        "dead_letters.html",
        name=name,
        names=sorted({known.name for known in listing.known} | ({name} if name else set())),
        rows=[
            (kind_of(queue), queue, letter, as_task(letter), reference(queue, letter.id))
            for queue, letter in page.items
        ],
        page=page,
        nothing=f"{scan.no_match('dead letters')}{scan.hint(conditions.task_part)}"
        if conditions
        else "no dead letters",
        after=None if page.next is None else "{}.{}".format(*page.next),
        first=request.args.get("after", "") == "",
        search={key: request.args.get(key, "").strip() for key in CONDITIONS},
        link={key: value for key, value in request.args.items() if key != "after" and value},
        total=None if conditions or counts is None else sum(row.dead for row in counts),
        more_names=listing.next is not None,
        broken=faults.rows,
        with_body=request_args.flag("body"),
        is_id=is_id,
        now=context().inspector.now(),
    )


def filter_of(values: Any) -> Filter:
    """Return the conditions of a form or an address."""
    return Filter(
        request_args.text("reason", values),
        request_args.text("id_prefix", values),
        task_part=request_args.text("task", values),
    )


def _place(text: str | None) -> LetterCursor:
    if text is None:
        return 0, 0
    found = _PLACE.fullmatch(text)
    if found is None:
        abort(400, "after: invalid place; use the link at the end of a page.")
    return int(found[1]), int(found[2])
