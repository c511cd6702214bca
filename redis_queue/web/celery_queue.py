"""The page of one Celery queue: counts, messages, search; move, delete and purge, each with a preview."""

from __future__ import annotations

from typing import Any, Final

from flask import Blueprint, render_template, request

from redis_queue.errors import ConfigurationError, InvalidNameError
from redis_queue.operate.celery_queues import CeleryQueues
from redis_queue.operate.flows import LimitsRow, flow_of_queue, has_limits
from redis_queue.operate.items import Messages
from redis_queue.web import request_args
from redis_queue.web.context import context

pages = Blueprint("celery_queue", __name__)

ROWS: Final = 50
MOST_ROWS: Final = 100

CONDITIONS: Final = {"task": "task_part", "id_prefix": "id_prefix", "text": "text"}
"""Fields of the form, and the conditions that they set."""


@pages.get("/celery-queue")
def show() -> str:
    """Show one queue, and its messages that match the search."""
    request_args.allow("name", *CONDITIONS, "after", "limit", "body")
    queues, name = _queues(), _name(request.args)
    messages, why = Messages(context().access, name, request_args.conditions(CONDITIONS)), ""
    start, limit = request_args.place(), request_args.number("limit", ROWS, 1, MOST_ROWS)
    row, found, flow = queues.row(name), None, flow_of_queue(context().access, name)
    if not row.error:
        try:
            found = messages.page(start, limit)
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
        reach=Messages.reach,
        nothing="".join(messages.nothing("no message waits")),
        after=None if found is None or found.next is None else "{}.{}".format(*found.next),
        **request_args.search(CONDITIONS),
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


def _unknown(queues: CeleryQueues, name: str) -> str:
    try:
        queues.check(name)
    except InvalidNameError as error:
        return str(error)
    return ""
