"""The page of one Celery queue: counts, messages, search; move, delete and purge, each with a preview."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from flask import Blueprint, abort, flash, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from redis_queue.errors import ConfigurationError, InvalidNameError
from redis_queue.operate.audit import Action, Subject
from redis_queue.operate.celery_messages import (
    REACH,
    Conditions,
    MessageCursor,
    WaitingMessage,
    by_reference,
    check_target,
    is_reference,
    keeps_order,
    page,
    purge_queue,
    references_of,
    remove,
)
from redis_queue.operate.celery_queues import CeleryQueues
from redis_queue.operate.flows import LimitsRow, flow_of_queue, has_limits
from redis_queue.operate.pages import MOST_LOOKED_AT, Page, gather
from redis_queue.operate.search_report import SearchReport
from redis_queue.operate.subjects import SHOWN
from redis_queue.store.chunks import MANY
from redis_queue.web import request_args
from redis_queue.web.confirmation import NOT_CONFIRMED, begin_operation, confirmed_count, new_operation
from redis_queue.web.context import context
from redis_queue.web.permissions import require

pages = Blueprint("celery_queue", __name__)

ROWS: Final = 50
MOST_ROWS: Final = 100

MOST_AT_ONCE: Final = 10_000
"""Most messages of one action, so that the request ends in time."""

CONDITIONS: Final = ("task", "id_prefix", "text")
VERBS: Final = {"move": "moved", "delete": "deleted", "purge": "deleted"}

_PLACE: Final = re.compile(r"(\d{1,3})\.(\d{1,9})", re.ASCII)


@pages.get("/celery-queue")
def show() -> str:
    """Show one queue, and its messages that match the search."""
    request_args.allow("name", *CONDITIONS, "after", "limit", "body")
    queues, name = _queues(), _name(request.args)
    conditions, scan, why = _conditions(request.args), SearchReport(), ""
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


@pages.post("/celery-queue/preview")
def preview() -> str:
    """Show the messages of an action, with a form to confirm it."""
    verb, name, target = _choice()
    form, more = request.form, False
    subjects: Sequence[Subject] = ()
    references: list[str] = []
    if verb == "purge":
        count = _queues().row(name).ready or 0
    else:
        if request_args.flag("matching", form):
            found, more = _matching(name)
            references = references_of(found)
            subjects = [_subject(name, message) for message in found[:SHOWN]]
        else:
            references = _references()
            subjects = [_subject(name, row) for row in by_reference(context().access, name, references[:SHOWN])]
        count = len(references)
    hidden = [("verb", verb), ("name", name), *([("to", target)] if target else []), *_search().items()]
    return render_template(
        "celery_queue_action.html",
        verb=verb,
        name=name,
        to=target,
        count=count,
        more=more,
        exact=verb != "purge" or keeps_order(context().access),
        subjects=subjects,
        now=context().inspector.now(),
        hidden=[*hidden, *(("row", reference) for reference in references)],
        operation=new_operation(),
        back=_back(name),
    )


@pages.post("/celery-queue")
def act() -> Response:
    """Apply an action to exactly the messages of its preview, once."""
    verb, name, target = _choice()
    confirmed = confirmed_count(MANY if verb == "purge" else MOST_AT_ONCE)
    references = [] if verb == "purge" else _references()
    if verb != "purge" and confirmed != len(references):
        abort(400, NOT_CONFIRMED)
    begin_operation()
    access, at, count = context().access, context().inspector.now(), 0
    affected: list[Subject] = []

    def note(message: WaitingMessage) -> None:
        if len(affected) < SHOWN:
            affected.append(_subject(name, message))

    batches = (
        purge_queue(access, name, confirmed) if verb == "purge" else remove(access, name, references, target, note=note)
    )
    try:
        for batch in batches:
            count += batch.count
    finally:
        context().audit.record([Action(at, g.user, verb, name, count, target or "", affected)])
    flash(_result(VERBS[verb], count, confirmed))
    return redirect(_back(name), 303)


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


def _choice() -> tuple[str, str, str | None]:
    """Return verb, queue and target of the form."""
    form = request.form
    request_args.reject_repeated(form, "row")
    _queues()
    verb, name = require(request_args.choice("verb", VERBS, "", form)), _name(form)
    if verb != "move":
        return verb, name, None
    target = request_args.text("to", form)
    if target is None:
        abort(400, "Move to which queue? Fill in its name.")
    return verb, name, check_target(context().access, name, target)


def _references() -> list[str]:
    found = list(dict.fromkeys(request.form.getlist("row")))
    request_args.check_rows(found, "Which messages?", MOST_AT_ONCE)
    if not all(map(is_reference, found)):
        abort(400, request_args.INVALID_ROW)
    return found


def _matching(name: str) -> tuple[list[WaitingMessage], bool]:
    conditions = _conditions(request.form)

    def read(start: MessageCursor | None, limit: int) -> Page[WaitingMessage, MessageCursor]:
        return page(context().access, name, conditions, start or (0, 0), limit)

    return gather(read, most=MOST_AT_ONCE, most_looked_at=MOST_LOOKED_AT)


def _conditions(values: Any) -> Conditions:
    task, id_prefix, text = (request_args.text(key, values) for key in CONDITIONS)
    return Conditions(task_part=task, id_prefix=id_prefix, text=text)


def _search() -> dict[str, Any]:
    return {key: request.form[key] for key in CONDITIONS if request.form.get(key)}


def _back(name: str) -> str:
    return url_for("celery_queue.show", name=name, **_search())


def _subject(name: str, message: WaitingMessage) -> Subject:
    return Subject(message.id, name, message.task, message.since)


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


def _result(past: str, count: int, confirmed: int) -> str:
    if count == confirmed:
        return f"{count:,} {past}."
    return f"{count:,} of {confirmed:,} {past}. The others were taken by workers, have changed, or cannot be moved."
