"""The pages of failed tasks: a list with its groups, and one failure."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, abort, request

from redis_queue.operate.actions.failures import is_dispatched, reference
from redis_queue.operate.failure_groups import failure_groups
from redis_queue.operate.items import FailureList
from redis_queue.store.ids import is_id
from redis_queue.web import request_args
from redis_queue.web.context import context, page

pages = Blueprint("failures", __name__)

GROUPS: Final = 20
"""Maximum number of groups that the page lists."""

CONDITIONS: Final = {"task": "task", "exception": "exception", "text": "text", "worker": "worker", "since": "due_after"}
"""Fields of the form, and the conditions that they set."""

MAX_CURSOR: Final = 280


@pages.get("/failures")
def show() -> str:
    """Show the failures that match the search, the last one first, and on the first page their groups."""
    request_args.allow(*CONDITIONS, "after", "limit")
    failures, conditions = context().access.monitor.failures, request_args.conditions(CONDITIONS)
    after, listing = request_args.text("after", most=MAX_CURSOR), FailureList(context().access, conditions)
    found = request_args.searched(listing, CONDITIONS, after, "")
    summary = failure_groups(context().access, conditions) if after is None else None
    groups = summary.groups if summary is not None else ()
    return page(
        "failures.html",
        rows=[(failure, reference(failure)) for failure in found["page"].items],
        groups=groups[:GROUPS],
        more_groups=max(0, len(groups) - GROUPS),
        summary=summary,
        kept=failures.kept(),
        total=None if conditions else failures.count(),
        **found,
    )


@pages.get("/failure")
def one() -> str:
    """Show one failure."""
    request_args.allow("id", "body")
    id_ = request.args.get("id", "")
    failure = context().access.monitor.failures.get(id_) if is_id(id_) else None
    if failure is None:
        abort(404, f"There is no failure {id_!r}: it was retried, deleted, is too old, or never existed.")
    return page(
        "failure.html",
        failure=failure,
        row=reference(failure),
        with_body=request_args.flag("body"),
        waits=not is_dispatched(context().access),
    )
