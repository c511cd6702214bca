"""Actions on messages and entries: a preview with a count, then the action, then a line in the audit log."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from flask import Blueprint, abort, flash, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from redis_queue.operate.audit import Action, Subject
from redis_queue.operate.dead_letters import LetterCursor
from redis_queue.operate.faults import Faults
from redis_queue.operate.pages import Page, gather
from redis_queue.operate.relative_time import When
from redis_queue.operate.subjects import subjects
from redis_queue.operate.verbs import VERBS, Done, Verb, as_delay_queue, check_new_time
from redis_queue.store.ids import is_id
from redis_queue.web import dead_letters, entries, request_args
from redis_queue.web.confirmation import NOT_CONFIRMED, begin_operation, confirmed_count, new_operation
from redis_queue.web.context import context
from redis_queue.web.permissions import require
from redis_queue.web.queue_lookup import delay_queues, reference, rows_of
from redis_queue.web.rows import Row, by_queue, unchanged, with_versions

pages = Blueprint("actions", __name__)

MOST_AT_ONCE: Final = 10_000
"""Most rows of one action, so that the request ends in time."""

MOST_FORM_BYTES: Final = 900_000
"""Most bytes of row references in one form; must be below MAX_FORM."""


@pages.post("/preview")
def preview() -> str:
    """Show the rows of an action, with a form to confirm it."""
    verb, when = _choice()
    chosen = [] if request_args.flag("matching", request.form) else _chosen_rows(verb)
    found, more = (chosen, False) if chosen else _matching_rows(verb)
    rows, cut = _fitting(with_versions(found))
    return render_template(
        "action.html",
        verb=verb,
        to=request_args.text("when", request.form) if when is not None else None,
        count=len(rows),
        more=more or cut,
        most_looked_at=entries.MOST_LOOKED_AT,
        subjects=subjects((row.queue, row.id) for row in rows),
        now=context().inspector.now(),
        hidden=_hidden_fields(verb, when, rows),
        operation=new_operation(),
        back=_back(verb),
    )


@pages.post("/act")
def act() -> Response:
    """Apply an action to exactly the rows of its preview, once."""
    verb, when = _choice()
    rows = _chosen_rows(verb)
    if confirmed_count(MOST_AT_ONCE) != len(rows):
        abort(400, NOT_CONFIRMED)
    begin_operation()
    total = _run(verb, when, rows)
    if total.maybe_sent:
        flash(f"{total.maybe_sent:,} of them were claimed before and may have been sent: revoke them as well.")
    flash(_result(verb, total.count, len(rows)))
    return redirect(_back(verb), 303)


def _run(verb: Verb, when: When | None, rows: Sequence[Row]) -> Done:
    at, done, maybe_sent = context().inspector.now(), Counter[str](), 0
    affected: dict[str, list[Subject]] = {}
    try:
        for queue, versions in by_queue(rows):
            done[queue.name] += 0
            # Read before the action: the entries may be gone afterwards.
            ids = unchanged(queue, versions)
            affected.setdefault(queue.name, []).extend(subjects((queue, id_) for id_ in ids))
            for batch in verb.run(context().access, queue, ids, when):
                done[queue.name] += batch.count
                maybe_sent += batch.maybe_sent
    finally:
        to = request_args.text("when", request.form) or "" if when is not None else ""
        context().audit.record(
            [Action(at, g.user, verb.name, name, count, to, affected.get(name, ())) for name, count in done.items()]
        )
    return Done(sum(done.values()), maybe_sent)


def _choice() -> tuple[Verb, When | None]:
    """Return the verb of the form, and the new due time for Reschedule; other verbs ignore that field."""
    form = request.form
    request_args.reject_repeated(form, "row")
    verb = VERBS[require(request_args.choice("verb", VERBS, "", form))]
    if verb.name != "reschedule":
        return verb, None
    when = request_args.when("when", form)
    if when is None:
        abort(400, "Reschedule needs a time: 2030-01-01T00:00Z, or 2h from now.")
    check_new_time(when)
    return verb, when


def _chosen_rows(verb: Verb) -> list[Row]:
    references = request.form.getlist("row")
    request_args.check_rows(references, f"{verb.label} what?", MOST_AT_ONCE)
    found = list(rows_of(references))
    if not verb.dead:
        for row in found:
            as_delay_queue(row.queue)
    return found


def _matching_rows(verb: Verb) -> tuple[list[Row], bool]:
    """Return rows that match the search of the form, and whether there may be more."""
    form = request.form
    if not verb.dead:
        queue, _ = delay_queues(request_args.text("queue", form, exact=True))
        ids, more = entries.matching(queue, entries.conditions_of(form), MOST_AT_ONCE)
        return [Row(queue, id_) for id_ in ids], more
    faults = Faults()
    name, conditions = request_args.text("name", form, exact=True), dead_letters.filter_of(form)

    def read(start: LetterCursor | None, limit: int) -> Page[Row, LetterCursor]:
        page, _ = dead_letters.page_of(conditions, name, start or (0, 0), limit, faults)
        return page.of([Row(queue, letter.id) for queue, letter in page.items if is_id(letter.id)])

    return gather(read, most=MOST_AT_ONCE, most_looked_at=entries.MOST_LOOKED_AT)


def _fitting(rows: Sequence[Row]) -> tuple[list[Row], bool]:
    """Return the first *rows* that fit into one form, and whether some are left."""
    sizes = itertools.accumulate(len(quote(reference(*row), safe="")) + len("&row=") for row in rows)
    count = sum(1 for size in sizes if size <= MOST_FORM_BYTES)
    return list(rows[:count]), count < len(rows)


def _hidden_fields(verb: Verb, when: When | None, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the hidden fields of the preview: each row with its version.

    Conditions could match other rows by the time the form is confirmed.
    """
    to = [] if when is None else [("when", request.form["when"])]
    return [("verb", verb.name), *to, *_search(verb).items(), *(("row", reference(*row)) for row in rows)]


def _search(verb: Verb) -> dict[str, Any]:
    names = ("name", *dead_letters.CONDITIONS) if verb.dead else ("queue", *entries.CONDITIONS)
    return {name: request.form[name] for name in names if request.form.get(name)}


def _back(verb: Verb) -> str:
    """Return the address of the list with the search that the user came from."""
    return url_for("dead_letters.show" if verb.dead else "entries.show", **_search(verb))


def _result(verb: Verb, count: int, confirmed: int) -> str:
    if count == confirmed:
        return f"{count:,} {verb.past}."
    return (
        f"{count:,} of {confirmed:,} {verb.past}. Skipped: {confirmed - count:,} (gone, replaced, or in another state)."
    )
