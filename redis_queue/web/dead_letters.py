"""The page of dead letters: search and actions."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, render_template

from redis_queue.catalog import kind_of
from redis_queue.operate.actions.entries import reference
from redis_queue.operate.items import Letters
from redis_queue.operate.queue_row import Faults
from redis_queue.store.ids import is_id
from redis_queue.web import request_args
from redis_queue.web.context import MOST_NAMES, context

pages = Blueprint("dead_letters", __name__)

ROWS: Final = 50
MOST_ROWS: Final = 100

CONDITIONS: Final = {"reason": "reason", "task": "task_part", "id_prefix": "id_prefix"}
"""Fields of the form, and the conditions that they set."""


@pages.get("/dead")
def show() -> str:
    """Show dead letters that match the search, oldest first in each queue."""
    request_args.allow("name", *CONDITIONS, "after", "limit", "body")
    name = request_args.text("name", exact=True)
    faults = Faults()
    conditions = request_args.conditions(CONDITIONS)
    letters = Letters(context().access, name, conditions, faults)
    page = letters.page(request_args.place(), request_args.number("limit", ROWS, 1, MOST_ROWS))
    listing = context().catalog.listing(limit=MOST_NAMES)
    return render_template(
        "dead_letters.html",
        name=name,
        names=sorted({known.name for known in listing.known} | ({name} if name else set())),
        rows=[
            (kind_of(found.queue), found.queue, found.letter, found.called, reference(found.queue, found.id))
            for found in page.items
        ],
        page=page,
        nothing="".join(letters.nothing("no dead letters")),
        after=None if page.next is None else "{}.{}".format(*page.next),
        **request_args.search(CONDITIONS),
        total=None if conditions or letters.rows is None else sum(row.dead for row in letters.rows),
        more_names=listing.next is not None,
        broken=faults.rows,
        is_id=is_id,
        now=context().inspector.now(),
    )
