"""The page of dead letters: search and actions."""

from __future__ import annotations

from typing import Final

from flask import Blueprint

from redis_queue.catalog import kind_of
from redis_queue.operate.actions.entries import reference
from redis_queue.operate.items import Letters
from redis_queue.web import request_args
from redis_queue.web.context import MAX_NAMES, context, page

pages = Blueprint("dead_letters", __name__)

CONDITIONS: Final = {"reason": "reason", "task": "task_part", "id_prefix": "id_prefix"}
"""Fields of the form, and the conditions that they set."""


@pages.get("/dead")
def show() -> str:
    """Show dead letters that match the search, oldest first in each queue."""
    request_args.allow("name", *CONDITIONS, "after", "limit", "body")
    name = request_args.text("name", exact=True)
    conditions = request_args.conditions(CONDITIONS)
    letters = Letters(context().access, name, conditions)
    cursor = request_args.cursor()
    found = request_args.searched(letters, CONDITIONS, cursor, "no dead letters", request_args.cursor_text)
    listing = context().access.catalog.listing(limit=MAX_NAMES)
    return page(
        "dead_letters.html",
        name=name,
        names=sorted({known.name for known in listing.known} | ({name} if name else set())),
        rows=[
            (kind_of(one.queue), one.queue, one.letter, one.called, reference(one.queue, one.id))
            for one in found["page"].items
        ],
        **found,
        total=None if conditions or letters.rows is None else sum(row.dead for row in letters.rows),
        more_names=listing.next is not None,
        broken=letters.report.faults.rows,
    )
