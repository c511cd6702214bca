"""The page of unique tasks: which task owns which key; and an action that frees a key, with a preview."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, render_template

from redis_queue.store.ids import is_id
from redis_queue.store.keys import MAX_NAME
from redis_queue.unique.owners import Owner
from redis_queue.web import request_args
from redis_queue.web.context import context

pages = Blueprint("unique", __name__)

ROWS: Final = 50
MOST_OFFSET: Final = 10_000_000


@pages.get("/unique")
def show() -> str:
    """List the owners of keys, those first whose time ends first."""
    request_args.allow("task", "offset")
    part, offset = request_args.text("task"), request_args.number("offset", 0, 0, MOST_OFFSET)
    page = context().access.unique.page(part or "", limit=ROWS, offset=offset)
    end = offset + ROWS
    return render_template(
        "unique.html",
        rows=[(owner, can_release(owner)) for owner in page.owners],
        total=page.total,
        offset=offset,
        next=end if end < page.total else None,
        part=part,
        now=context().inspector.now(),
    )


def can_release(owner: Owner) -> bool:
    """Tell whether a form can name this owner: its texts are printable, and no other program wrote them."""
    return 0 < len(owner.task) <= MAX_NAME and f"{owner.task}{owner.key}".isprintable() and is_id(owner.task_id)
