"""The pages of failed tasks: a list with its groups, and one failure."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, abort, render_template, request

from redis_queue.operate.actions.failures import is_dispatched, reference
from redis_queue.operate.items import FailureList
from redis_queue.store.ids import is_id
from redis_queue.web import request_args
from redis_queue.web.context import context

pages = Blueprint("failures", __name__)

ROWS: Final = 50
MOST_ROWS: Final = 100

GROUPS: Final = 20
"""Most groups that the page lists."""

CONDITIONS: Final = {
    "task": "task",
    "exception": "exception",
    "text": "text",
    "worker": "worker",
    "since": "due_after",
}
"""Fields of the form, and the conditions that they set."""

MOST_CURSOR: Final = 280


@pages.get("/failures")
def show() -> str:
    """Show the groups of failures, and those that match the search, the last one first."""
    request_args.allow(*CONDITIONS, "after", "limit")
    failures, conditions = context().monitor.failures, request_args.conditions(CONDITIONS)
    after, listing = request_args.text("after", most=MOST_CURSOR), FailureList(context().access, conditions)
    page = listing.page(after, request_args.number("limit", ROWS, 1, MOST_ROWS))
    groups = failures.groups() if not conditions and after is None else []
    return render_template(
        "failures.html",
        page=page,
        rows=[(failure, reference(failure)) for failure in page.items],
        groups=groups[:GROUPS],
        more_groups=max(0, len(groups) - GROUPS),
        kept=failures.kept(),
        total=None if conditions else failures.count(),
        nothing="".join(listing.nothing("")),
        **request_args.search(CONDITIONS),
        is_id=is_id,
        now=context().inspector.now(),
    )


@pages.get("/failure")
def one() -> str:
    """Show one failure."""
    request_args.allow("id", "body")
    id_ = request.args.get("id", "")
    failure = context().monitor.failures.get(id_) if is_id(id_) else None
    if failure is None:
        abort(404, f"There is no failure {id_!r}: it was retried, deleted, is too old, or never existed.")
    return render_template(
        "failure.html",
        failure=failure,
        row=reference(failure),
        with_body=request_args.flag("body"),
        waits=not is_dispatched(context().access),
        now=context().inspector.now(),
    )
