"""The page of one message or entry."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from flask import Blueprint, abort, render_template, request

from redis_queue.catalog import kind_of
from redis_queue.model import Item
from redis_queue.operate.actions.entries import KINDS, reference
from redis_queue.operate.entries import task_of
from redis_queue.web import formatting, request_args
from redis_queue.web.context import context
from redis_queue.web.queue_lookup import queue_of

pages = Blueprint("entry", __name__)

MOST_BYTES: Final = 1024 * 1024
"""Most bytes of a record that are shown."""


@pages.get("/entry")
def show() -> str:
    """Show one message or entry."""
    request_args.allow("kind", "queue", "id", "body")
    name = request_args.text("queue", exact=True) or context().access.default_delay_queue
    queue = queue_of(request_args.choice("kind", KINDS, "delay"), name)
    id_ = request.args.get("id", "")
    item = queue.look(id_, max_bytes=MOST_BYTES)
    if item is None:
        abort(404, f"{name!r} has no {id_!r}: it has run, was cancelled, or never existed.")
    now = context().inspector.now()
    task = task_of(item)
    with_body = request_args.flag("body")
    return render_template(
        "entry.html",
        queue=queue,
        kind=kind_of(queue),
        item=item,
        task=task,
        task_id=task_id if isinstance(task_id := task.headers.get("id"), str) else "",
        reference=reference(queue, item.id),
        history=list(_history(item)),
        with_body=with_body,
        body=formatting.body(item.body) if with_body and not item.problem else None,
        headers=formatting.body(dict(item.headers)) if with_body else None,
        now=now,
    )


def _history(item: Item) -> Iterator[tuple[datetime | None, str]]:
    if item.put_at is not None:
        yield item.put_at, "stored"
    if item.deliveries:
        times = "once" if item.deliveries == 1 else f"{item.deliveries} times"
        yield None, f"delivered {times}"
    if item.reason:
        yield None, f"last given back: {item.reason}"
    last = {"delayed": "due", "in_flight": "in flight; its lease ends", "dead": "died", "ready": "ready to be claimed"}
    yield item.at, last[item.state]
