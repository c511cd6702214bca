"""The page of one Celery queue: counts, messages, search; move, delete and purge, each with a preview."""

from __future__ import annotations

import re
from typing import Any, Final

from flask import Blueprint, abort, render_template, request

from redis_queue.errors import ConfigurationError, InvalidNameError
from redis_queue.operate.celery_messages import (
    REACH,
    Conditions,
    MessageCursor,
    page,
)
from redis_queue.operate.celery_queues import CeleryQueues
from redis_queue.operate.flows import LimitsRow, flow_of_queue, has_limits
from redis_queue.operate.search_report import SearchReport
from redis_queue.web import request_args
from redis_queue.web.context import context

pages = Blueprint("celery_queue", __name__)

ROWS: Final = 50
MOST_ROWS: Final = 100

CONDITIONS: Final = ("task", "id_prefix", "text")

_PLACE: Final = re.compile(r"(\d{1,3})\.(\d{1,9})", re.ASCII)


@pages.get("/celery-queue")
def show() -> str:
    """Show one queue, and its messages that match the search."""
    request_args.allow("name", *CONDITIONS, "after", "limit", "body")
    queues, name = _queues(), _name(request.args)
    conditions, scan, why = conditions_of(request.args), SearchReport(), ""
    start, limit = _place(request_args.text("after")), request_args.number("limit", ROWS, 1, MOST_ROWS)
    row, found, flow = queues.row(name), None, flow_of_queue(context().access, name)
    if not row.error:
        try:
            found = page(context().access, name, conditions, start, limit, scan=scan)
        except ConfigurationError as error:
            why = f"Messages are not shown: {error}."
    return render_template(
        "celery_queue.html",
        row=row,
        unknown="" if row.error or row.ready else _unknown(queues, name),
        page=found,
        flow=flow,
        limits="" if flow is None or not has_limits(flow) else LimitsRow.of(flow.limits).text,
        why=why,
        reach=REACH,
        nothing=f"{scan.no_match('messages')}{scan.hint(conditions.task_part)}" if conditions else "no message waits",
        after=None if found is None or found.next is None else "{}.{}".format(*found.next),
        first=request.args.get("after", "") == "",
        search={key: request.args.get(key, "").strip() for key in CONDITIONS},
        link={key: value for key, value in request.args.items() if key != "after" and value},
        with_body=request_args.flag("body"),
        now=context().inspector.now(),
    )


def _queues() -> CeleryQueues:
    found = context().access.celery_queues
    if found is None:
        raise InvalidNameError("Celery's queues need an app: redis-queue -A APP web")
    return found


def _name(values: Any) -> str:
    name = request_args.text("name", values, exact=True)
    if name is None:
        raise InvalidNameError("name is missing: choose a queue from the list of all queues")
    return name


def conditions_of(values: Any) -> Conditions:
    """Return the conditions of a form or an address."""
    task, id_prefix, text = (request_args.text(key, values) for key in CONDITIONS)
    return Conditions(task_part=task, id_prefix=id_prefix, text=text)


def _unknown(queues: CeleryQueues, name: str) -> str:
    try:
        queues.check(name)
    except InvalidNameError as error:
        return str(error)
    return ""


def _place(text: str | None) -> MessageCursor:
    if text is None:
        return 0, 0
    found = _PLACE.fullmatch(text)
    if found is None:
        abort(400, "after: invalid place; use the link at the end of a page.")
    return int(found[1]), int(found[2])
