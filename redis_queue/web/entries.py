"""The pages of waiting entries and of dead letters: search and actions; and that of one message or entry."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from flask import Blueprint, abort, redirect, request, url_for
from werkzeug.wrappers import Response

from redis_queue.catalog import KINDS, kind_of
from redis_queue.delay.queue import DelayQueue
from redis_queue.model import Item
from redis_queue.operate.actions.entries import reference
from redis_queue.operate.items import Entries, Letters, task_of
from redis_queue.operate.task_life import task_life
from redis_queue.store.ids import RETRY, id_bytes, id_text
from redis_queue.web import formatting, request_args
from redis_queue.web.context import MAX_NAMES, context, delay_queues, page

pages = Blueprint("entries", __name__)

MAX_CURSOR: Final = 4000

CONDITIONS: Final = {
    "task": "task_part",
    "to": "queue",
    "id_prefix": "id_prefix",
    "text": "text",
    "due_before": "due_before",
    "due_after": "due_after",
}
"""Fields of the form, and the conditions that they set."""

MAX_BYTES: Final = 1024 * 1024
"""Maximum bytes of a record that are shown."""


@pages.get("/scheduled")
def show() -> str:
    """Show waiting entries that match the search, by due time."""
    request_args.allow("queue", *CONDITIONS, "after", "limit", "body")
    queue, names = delay_queues(request_args.text("queue", exact=True))
    listing = Entries(context().access, queue, request_args.conditions(CONDITIONS))
    start = _decoded(request_args.text("after", most=MAX_CURSOR))
    found = request_args.searched(listing, CONDITIONS, start, "no entries wait", _encoded)
    return page("entries.html", queue=queue, names=names, total=listing.count(), **found)


def _encoded(cursor: str) -> str:
    # Ids from other tools may hold any bytes, and surrounding white space counts.
    return base64.urlsafe_b64encode(id_bytes(cursor)).decode()


def _decoded(cursor: str | None) -> str | None:
    try:
        return None if cursor is None else id_text(base64.b64decode(cursor, altchars=b"-_", validate=True))
    except ValueError:
        abort(400, "after: invalid cursor; use the link at the end of a page.")


@pages.get("/entry")
def one() -> str | Response:
    """Show one message or entry; the task of one that was dispatched."""
    request_args.allow("kind", "queue", "id", "body")
    name = request_args.text("queue", exact=True) or context().access.default_delay_queue
    queue = context().access.queue(request_args.choice("kind", KINDS, "delay"), name)
    id_ = request.args.get("id", "")
    item = queue.look(id_, max_bytes=MAX_BYTES)
    if item is None:
        called = id_.removesuffix(RETRY)
        if isinstance(queue, DelayQueue) and task_life(context().access, called).is_known:
            # It came due meanwhile.
            return redirect(url_for("search.task", id=called))
        abort(404, f"{name!r} has no {id_!r}: it has run, was cancelled, or never existed.")
    task = task_of(item)
    with_body = request_args.flag("body")
    return page(
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


LETTER_CONDITIONS: Final = {"reason": "reason", "task": "task_part", "id_prefix": "id_prefix"}
"""Fields of the form, and the conditions that they set."""


@pages.get("/dead")
def dead() -> str:
    """Show dead letters that match the search, oldest first in each queue."""
    request_args.allow("name", *LETTER_CONDITIONS, "after", "limit", "body")
    name = request_args.text("name", exact=True)
    conditions = request_args.conditions(LETTER_CONDITIONS)
    letters = Letters(context().access, name, conditions)
    cursor = request_args.cursor()
    found = request_args.searched(letters, LETTER_CONDITIONS, cursor, "no dead letters", request_args.cursor_text)
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
        broken=letters.report.faults.rows.values(),
    )
