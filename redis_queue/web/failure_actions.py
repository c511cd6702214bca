"""Actions on failures: a preview with a count, then the action, then a line in the audit log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from flask import Blueprint, abort, flash, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from redis_queue.basics.times import from_ms
from redis_queue.errors import InvalidValueError
from redis_queue.monitor.model import Failure
from redis_queue.operate.audit import Action, Subject
from redis_queue.operate.failures import (
    PLACE,
    Changes,
    delay_queue_of,
    delete,
    is_dispatched,
    retry,
    subjects_of,
)
from redis_queue.operate.pages import gather
from redis_queue.store.chunks import MAX_RATE, MIN_RATE
from redis_queue.store.ids import is_id
from redis_queue.web import request_args
from redis_queue.web.confirmation import NOT_CONFIRMED, begin_operation, confirmed_count, new_operation
from redis_queue.web.context import context
from redis_queue.web.failures import CONDITIONS, filter_of, row_of
from redis_queue.web.permissions import require

pages = Blueprint("failure_actions", __name__)

MOST_AT_ONCE: Final = 5000
"""Most failures of one action, so that the request ends in time."""

MOST_LOOKED_AT: Final = 20_000

MOST_FORM_BYTES: Final = 900_000
"""Most bytes of references in one form; must be below MAX_FORM."""

MOST_ARGUMENTS: Final = 10_000
"""Most characters of other arguments."""

VERBS: Final = {"retry": ("Retry", "stored to be sent again"), "delete": ("Delete", "deleted")}
"""The label of each verb, and what it has done."""

_ROW = re.compile(r"(\d{1,15}):([^:]{1,3000})", re.ASCII)


@pages.post("/failures/preview")
def preview() -> str:
    """Show the failures of an action, with a form to confirm it."""
    verb = _verb()
    options = _options(verb)
    if verb == "retry":
        delay_queue_of(context().access)
    matching = request_args.flag("matching", request.form)
    found, more = _matching() if matching else (_chosen(verb), False)
    rows, size = [], 0
    for failure in found:
        size += len(row_of(failure)) * 3
        if size > MOST_FORM_BYTES:
            more = True
            break
        rows.append(failure)
    return render_template(
        "failure_action.html",
        verb=verb,
        question=VERBS[verb][0],
        count=len(rows),
        more=more,
        subjects=subjects_of(rows),
        options=options,
        waits=verb == "retry" and not is_dispatched(context().access),
        hidden=[("verb", verb), *options.items(), *_search().items(), *(("row", row_of(row)) for row in rows)],
        operation=new_operation(),
        back=url_for("failures.show", **_search()),
        now=context().inspector.now(),
    )


@pages.post("/failures/act")
def act() -> Response:
    """Apply an action to exactly the failures of its preview, once."""
    verb = _verb()
    changes, rate = _changes(), _rate()
    failures = _chosen(verb, present=False)
    confirmed = confirmed_count(MOST_AT_ONCE)
    if confirmed != len(request.form.getlist("row")):
        abort(400, NOT_CONFIRMED)
    begin_operation()
    at, count = context().inspector.now(), 0
    reasons: Counter[str] = Counter()
    done: list[Subject] = []
    try:
        if verb == "delete":
            for deleted in delete(context().access, failures):
                count += len(deleted)
                done = done or subjects_of(deleted)
        else:
            for batch in retry(context().access, failures, changes, rate=rate):
                count += len(batch.stored)
                reasons.update(reason for _, reason in batch.skipped)
                done = done or subjects_of(batch.stored)
    finally:
        detail = ", ".join(f"{name} {value}" for name, value in _options(verb).items())
        context().audit.record([Action(at, g.user, verb, PLACE, count, detail, done)])
    for reason, number in reasons.most_common(5):
        flash(f"{number:,} skipped: {reason}.")
    gone = confirmed - count - sum(reasons.values())
    flash(f"{count:,} {VERBS[verb][1]}.{f' Skipped: {gone:,} (gone, or failed again).' if gone else ''}")
    return redirect(url_for("failures.show", **_search()), 303)


def _verb() -> str:
    request_args.reject_repeated(request.form, "row")
    return require(request_args.choice("verb", VERBS, "", request.form))


def _options(verb: str) -> dict[str, str]:
    """Return the checked options of a retry, as they are shown and sent again."""
    if verb != "retry":
        return {}
    _changes(), _rate()
    names = ("args", "kwargs", "rate")
    return {name: value for name in names if (value := request.form.get(name, "").strip())}


def _changes() -> Changes:
    texts = (request_args.text(name, request.form, most=MOST_ARGUMENTS) for name in ("args", "kwargs"))
    return Changes.read(*texts)


def _rate() -> float | None:
    text = request_args.text("rate", request.form)
    if text is None:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidValueError(f"rate={text[:60]!r}: must be {MIN_RATE} to {MAX_RATE:.0f} per second")
    return rate


def _chosen(verb: str, *, present: bool = True) -> Sequence[Failure]:
    """Return the failures of the form, as they were when it was made; with *present*, only those that are kept."""
    rows = request.form.getlist("row")
    request_args.check_rows(rows, f"{VERBS[verb][0]} what?", MOST_AT_ONCE)
    found: dict[str, Failure] = {}
    for row in rows:
        parts = _ROW.fullmatch(row)
        id_ = unquote(parts[2]) if parts else ""
        if parts is None or not is_id(id_):
            abort(400, request_args.INVALID_ROW)
        found[id_] = Failure(id_, "", "", "", from_ms(int(parts[1])))
    if not present:
        return list(found.values())
    kept = context().monitor.failures.summaries(found)
    return [failure for failure in kept if failure.failed_at == found[failure.id].failed_at]


def _matching() -> tuple[Sequence[Failure], bool]:
    """Return failures that match the search of the form, and whether there may be more."""
    failures, conditions = context().monitor.failures, filter_of(request.form)
    found, more = gather(
        lambda after, limit: conditions.page(failures, after, limit), most=MOST_AT_ONCE, most_looked_at=MOST_LOOKED_AT
    )
    return [failure for failure in found if is_id(failure.id)], more


def _search() -> dict[str, Any]:
    return {name: request.form[name] for name in CONDITIONS if request.form.get(name)}
