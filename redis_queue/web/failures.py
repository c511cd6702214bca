"""The pages of failed tasks: a list with its groups, and one failure."""

from __future__ import annotations

from typing import Any, Final

from flask import Blueprint, abort, render_template, request

from redis_queue.operate.actions.failed import reference
from redis_queue.operate.failures import FailureFilter, is_dispatched, point
from redis_queue.operate.search_report import SearchReport
from redis_queue.store.ids import is_id
from redis_queue.web import request_args
from redis_queue.web.context import context

pages = Blueprint("failures", __name__)

ROWS: Final = 50
MOST_ROWS: Final = 100

GROUPS: Final = 20
"""Most groups that the page lists."""

CONDITIONS: Final = ("task", "exception", "text", "worker", "since")

MOST_CURSOR: Final = 280


@pages.get("/failures")
def show() -> str:
    """Show the groups of failures, and those that match the search, the last one first."""
    request_args.allow(*CONDITIONS, "after", "limit")
    failures, conditions, scan = context().monitor.failures, filter_of(request.args), SearchReport()
    after = request_args.text("after", most=MOST_CURSOR)
    page = conditions.page(failures, after, request_args.number("limit", ROWS, 1, MOST_ROWS), scan)
    groups = failures.groups() if not conditions and after is None else []
    return render_template(
        "failures.html",
        page=page,
        rows=[(failure, reference(failure)) for failure in page.items],
        groups=groups[:GROUPS],
        more_groups=max(0, len(groups) - GROUPS),
        kept=failures.kept(),
        total=None if conditions else failures.count(),
        nothing=f"{scan.no_match('failures')}{scan.hint(conditions.task)}" if conditions else "",
        first=after is None,
        search={key: request.args.get(key, "").strip() for key in CONDITIONS},
        link={key: value for key, value in request.args.items() if key != "after" and value},
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


def filter_of(values: Any) -> FailureFilter:
    """Return the conditions of a form or an address."""
    task, exception, text, worker = (request_args.text(name, values) for name in CONDITIONS[:-1])
    return FailureFilter(task, exception, text, worker, point(context().access, request_args.when("since", values)))
