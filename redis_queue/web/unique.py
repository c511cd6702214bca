"""The page of unique tasks: which task owns which key; and an action that frees a key, with a preview."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, abort, flash, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from redis_queue.operate.audit import Action
from redis_queue.operate.unique import RELEASE, name_of, release, subjects_of
from redis_queue.store.ids import is_id
from redis_queue.store.keys import MAX_NAME
from redis_queue.unique.owners import Owner
from redis_queue.web import request_args
from redis_queue.web.confirmation import NOT_CONFIRMED, begin_operation, confirmed_count, new_operation
from redis_queue.web.context import context
from redis_queue.web.permissions import require

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
        verb=RELEASE,
    )


@pages.post("/unique/preview")
def preview() -> str:
    """Show the effect of a release, with a form to confirm it."""
    owner, is_same = _choice()
    return render_template(
        "unique_action.html",
        owner=owner,
        is_same=is_same,
        verb=RELEASE,
        operation=new_operation(),
        now=context().inspector.now(),
    )


@pages.post("/unique")
def act() -> Response:
    """Free one key, once."""
    owner, is_same = _choice()
    if confirmed_count(1) != 1:
        abort(400, NOT_CONFIRMED)
    begin_operation()
    at = context().inspector.now()
    name = name_of(owner.task, owner.key)
    if not is_same:
        abort(409, f"Another task owns {name} now: {owner.task_id}.")
    if not release(context().access, owner):
        abort(409, f"The task {owner.task_id} does not own {name} any more.")
    context().audit.record([Action(at, g.user, RELEASE, owner.task, 1, owner.key, subjects_of(owner))])
    flash(f"Released: {name}. The task {owner.task_id} goes on.")
    return redirect(url_for("unique.show"), 303)


def can_release(owner: Owner) -> bool:
    """Tell whether a form can name this owner: its texts are printable, and no other program wrote them."""
    return 0 < len(owner.task) <= MAX_NAME and f"{owner.task}{owner.key}".isprintable() and is_id(owner.task_id)


def _choice() -> tuple[Owner, bool]:
    """Return the owner of the key of the form now, and whether that is the task that the user saw."""
    form = request.form
    request_args.reject_repeated(form)
    require(request_args.choice("verb", (RELEASE,), "", form))
    task, key, id_ = (request_args.text(name, form, exact=True) for name in ("task", "key", "id"))
    if task is None:
        abort(400, "Which key? Choose one from the list.")
    owner = context().access.unique.get(task, key or "")
    if owner is None:
        abort(404, f"No task owns {name_of(task, key or '')}.")
    return owner, owner.task_id == id_
