"""The page of one Celery queue: counts, messages, search; move, delete and purge, each with a preview."""

from __future__ import annotations

from typing import Final

from flask import Blueprint

from redis_queue.errors import ConfigurationError, InvalidNameError
from redis_queue.operate.celery_queues import CeleryQueues
from redis_queue.operate.flows import LimitsRow, flow_of_queue, has_limits
from redis_queue.operate.items import Messages
from redis_queue.web import request_args
from redis_queue.web.context import context, page

pages = Blueprint("celery_queue", __name__)

CONDITIONS: Final = {"task": "task_part", "id_prefix": "id_prefix", "text": "text"}
"""Fields of the form, and the conditions that they set."""


@pages.get("/celery-queue")
def show() -> str:
    """Show one queue, and its messages that match the search."""
    request_args.allow("name", *CONDITIONS, "after", "limit", "body")
    access, name = context().access, request_args.text("name", exact=True)
    queues = access.celery_queues
    if queues is None:
        raise InvalidNameError("Celery's queues need an app: redis-queue -A APP web")
    if name is None:
        raise InvalidNameError("name is missing: choose a queue from the list of all queues")
    messages, start = Messages(access, name, request_args.conditions(CONDITIONS)), request_args.cursor()
    row, found, flow = queues.row(name), {}, flow_of_queue(access, name)
    if not row.error:
        try:
            found = request_args.searched(messages, CONDITIONS, start, "no message waits", request_args.cursor_text)
        except ConfigurationError as error:
            found = {"why": f"Messages are not shown: {error}."}
    return page(
        "celery_queue.html",
        row=row,
        unknown="" if row.error or row.ready else _unknown(queues, name),
        flow=flow,
        limits="" if flow is None or not has_limits(flow) else LimitsRow.of(flow.limits).text,
        reach=Messages.reach,
        **found,
    )


def _unknown(queues: CeleryQueues, name: str) -> str:
    try:
        queues.check(name)
    except InvalidNameError as error:
        return str(error)
    return ""
