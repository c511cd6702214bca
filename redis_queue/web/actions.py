"""What changes something: a preview with a count, then the act, then a line in the audit."""

from __future__ import annotations

import itertools
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

from flask import Blueprint, abort, flash, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from redis_queue.delay.queue import DelayQueue
from redis_queue.inspector import AnyQueue, kind_of
from redis_queue.logs import logger_of
from redis_queue.model import CancelOutcome
from redis_queue.operate.audit import Action, Subject
from redis_queue.operate.dead_letters import Place
from redis_queue.operate.faults import Faults
from redis_queue.operate.pages import Page, gather
from redis_queue.operate.relative_time import When
from redis_queue.operate.subjects import subjects
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.chunks import CHUNK, MANY, chunks
from redis_queue.store.keys import is_id
from redis_queue.web import request_args
from redis_queue.web.context import context
from redis_queue.web.dead_letters import CONDITIONS as DEAD
from redis_queue.web.dead_letters import filter_of, page_of
from redis_queue.web.entries import CONDITIONS as SCHEDULED
from redis_queue.web.entries import MOST_LOOKED_AT, conditions_of, matching
from redis_queue.web.queue_lookup import delay_queues, queue_of, reference, referred
from redis_queue.web.queues import KINDS

logger = logger_of("redis_queue.operate.audit")

pages = Blueprint("actions", __name__)

MOST_AT_ONCE: Final = 10_000
"""What matches is acted on so many at a time: a request must end."""

MOST_NAMED: Final = 900_000
"""Bytes of the names of rows in one form, which must stay below what the dashboard takes (MAX_FORM)."""

_OPERATION = re.compile(r"[\w-]{22}", re.ASCII)

GONE: Final = "gone"
"""Version of a message or entry that does not exist."""

NOT_CONFIRMED: Final = "Nothing was confirmed: begin with a preview."

Pair = tuple[AnyQueue, str]
Row = tuple[AnyQueue, str, str]
"""A message or entry, with the version that the preview counted."""


@dataclass(frozen=True, slots=True)
class Verb:
    """What can be done with chosen rows: how it is asked, and how it is told. *act* yields how many it did."""

    name: str
    question: str
    done: str
    act: Callable[[AnyQueue, Sequence[str], When | None], Iterator[int]]
    back: str
    destroys: bool = False


def _cancel(queue: AnyQueue, ids: Sequence[str], _: When | None) -> Iterator[int]:
    unsure = 0
    for chunk in chunks(ids, CHUNK):
        outcomes = context().access.cancel(_delay(queue), chunk)
        unsure += outcomes.count(CancelOutcome.MAYBE_SENT)
        yield sum(outcome.taken_out for outcome in outcomes)
    if unsure:
        flash(f"{unsure:,} of them were claimed before and may have been sent: revoke them as well.")


def _run_now(queue: AnyQueue, ids: Sequence[str], _: When | None) -> Iterator[int]:
    for id_ in ids:
        yield _delay(queue).run_now(id_)


def _reschedule(queue: AnyQueue, ids: Sequence[str], when: When | None) -> Iterator[int]:
    choice = {"delay": when} if isinstance(when, timedelta) else {"due_at": when}
    for id_ in ids:
        yield _delay(queue).reschedule(id_, **choice)


def _redrive(queue: AnyQueue, ids: Sequence[str], _: When | None) -> Iterator[int]:
    for chunk in chunks(ids, CHUNK):
        yield queue.redrive(chunk)


def _delete(queue: AnyQueue, ids: Sequence[str], _: When | None) -> Iterator[int]:
    now = context().inspector.now()
    for chunk in chunks(ids, CHUNK):
        yield queue.delete_dead(chunk, until=now)


VERBS: Final = {
    verb.name: verb
    for verb in (
        Verb("cancel", "Cancel", "cancelled", _cancel, "entries.show", destroys=True),
        Verb("run-now", "Run now", "made due", _run_now, "entries.show"),
        Verb("reschedule", "Reschedule", "rescheduled", _reschedule, "entries.show"),
        Verb("redrive", "Redrive", "redriven", _redrive, "dead_letters.show"),
        Verb("delete", "Delete", "deleted", _delete, "dead_letters.show", destroys=True),
    )
}


@pages.get("/audit")
def show() -> str:
    """Show what was done by hand."""
    request_args.only()
    return render_template("audit.html", actions=context().audit.last(100))


@pages.post("/preview")
def preview() -> str:
    """Show what would be changed, and ask."""
    verb, when = _asked()
    ticked = [] if request_args.flag("matching", request.form) else [(queue, id_) for queue, id_, _ in _ticked(verb)]
    pairs, more = (ticked, False) if ticked else _matching(verb)
    rows, cut = _that_fit(_with_versions(pairs))
    return render_template(
        "action.html",
        verb=verb,
        to=request_args.text("when", request.form) if when is not None else None,
        count=len(rows),
        more=more or cut,
        most_looked_at=MOST_LOOKED_AT,
        shown=subjects((queue, id_) for queue, id_, _ in rows),
        now=context().inspector.now(),
        hidden=_hidden(verb, when, rows),
        operation=secrets.token_urlsafe(16),
        back=url_for(verb.back, **_search(verb)),
    )


@pages.post("/act")
def act() -> Response:
    """Change what the preview showed, and nothing else, once."""
    verb, when = _asked()
    rows = _ticked(verb)
    confirmed = request_args.number("confirmed", 0, 1, MOST_AT_ONCE, request.form)
    if confirmed != len(rows):
        abort(400, NOT_CONFIRMED)
    _begin()
    at, done = context().inspector.now(), Counter[str]()
    about: dict[str, list[Subject]] = {}
    try:
        for queue, versions in _grouped(rows):
            done[queue.name] += 0
            # Read before the action: the entries may be gone afterwards.
            ids = _unchanged(queue, versions)
            about.setdefault(queue.name, []).extend(subjects((queue, id_) for id_ in ids))
            for count in verb.act(queue, ids, when):
                done[queue.name] += count
    finally:
        to = request_args.text("when", request.form) or "" if when is not None else ""
        _note([Action(at, g.user, verb.name, name, count, to, about.get(name, ())) for name, count in done.items()])
    flash(_told(verb, sum(done.values()), len(rows)))
    return redirect(url_for(verb.back, **_search(verb)), 303)


@pages.post("/queue/preview")
def queue_preview() -> str:
    """Show the effect on one queue, and ask."""
    queue, verb = _asked_of_queue()
    expired = context().inspector.expired(queue) if verb == "putback" else 0
    stats = queue.stats() if isinstance(queue, RedisQueue) else None
    return render_template(
        "queue_action.html",
        queue=queue,
        kind=kind_of(queue),
        verb=verb,
        expired=expired,
        stats=stats,
        operation=secrets.token_urlsafe(16),
    )


@pages.post("/queue")
def queue_action() -> Response:
    """Pause, resume or put back one queue, once."""
    queue, verb = _asked_of_queue()
    confirmed = request_args.number("confirmed", 0, 1, MANY, request.form)
    if not confirmed:
        abort(400, NOT_CONFIRMED)
    _begin()
    count, at = 1, context().inspector.now()
    if verb == "putback":
        back = queue.put_back(confirmed)
        count = back.returned + back.dead
        flash(f"{back.returned:,} returned, {back.dead:,} dead.")
    else:
        getattr(queue, verb)()
        flash(f"{queue.name} {'paused' if verb == 'pause' else 'resumed'}.")
    _note([Action(at, g.user, verb, queue.name, count)])
    return redirect(url_for("queues.one", kind=kind_of(queue), name=queue.name), 303)


def _asked_of_queue() -> tuple[AnyQueue, str]:
    """Return the queue and the action of the form."""
    form = request.form
    request_args.once(form)
    kind, name = request_args.choice("kind", KINDS, "", form), request_args.text("name", form, exact=True)
    verb = request_args.choice("verb", ("pause", "resume", "putback"), "", form)
    queue = queue_of(kind, name or "")
    if verb != "putback" and not isinstance(queue, RedisQueue):
        abort(
            400,
            "A DelayQueue cannot be paused, only a RedisQueue: dispatchers wait for it. Stop the dispatchers instead.",
        )
    return queue, verb


def _begin() -> None:
    """Refuse a form that does not come from a preview, or that was sent before."""
    operation = request_args.text("operation", request.form) or ""
    if not _OPERATION.fullmatch(operation):
        abort(400, NOT_CONFIRMED)
    if not context().audit.begin(operation):
        abort(409, "This form was sent before. The audit says what it did; for more, begin with a new preview.")


def _asked() -> tuple[Verb, When | None]:
    """Return what is to be done, and to when; a time that was typed belongs to Reschedule only."""
    form = request.form
    request_args.once(form, "row")
    verb = VERBS[request_args.choice("verb", VERBS, "", form)]
    if verb.name != "reschedule":
        return verb, None
    when = request_args.when("when", form)
    if when is None:
        abort(400, "Reschedule to when? Give 2030-01-01T00:00Z, or 2h from now.")
    if isinstance(when, timedelta) and when < timedelta(0):
        abort(400, "That is in the past; Run now makes entries due at once.")
    return verb, when


def _matching(verb: Verb) -> tuple[list[Pair], bool]:
    form = request.form
    if verb.back == "entries.show":
        queue, _ = delay_queues(request_args.text("queue", form, exact=True))
        ids, more = matching(queue, conditions_of(form), MOST_AT_ONCE)
        return [(queue, id_) for id_ in ids], more
    faults = Faults()
    name, chosen = request_args.text("name", form, exact=True), filter_of(form)

    def read(start: Place | None, limit: int) -> Page[Pair, Place]:
        page, _ = page_of(chosen, name, start or (0, 0), limit, faults)
        return page.of([(queue, letter.id) for queue, letter in page.items if is_id(letter.id)])

    return gather(read, most=MOST_AT_ONCE, most_looked_at=MOST_LOOKED_AT)


def _ticked(verb: Verb) -> list[Row]:
    rows = request.form.getlist("row")
    if not rows:
        abort(400, f"{verb.question} what? Tick some rows first.")
    if len(rows) > MOST_AT_ONCE:
        abort(400, f"{len(rows):,} rows: give at most {MOST_AT_ONCE:,}.")
    found = list(referred(rows))
    if verb.back == "entries.show":
        for queue, _, _ in found:
            _delay(queue)
    return found


def _with_versions(pairs: Sequence[Pair]) -> list[Row]:
    """Return *pairs* with their current versions; GONE for those that no longer exist."""
    rows = [(queue, id_, GONE) for queue, id_ in pairs]
    now = {_key(queue): queue.versions(versions) for queue, versions in _grouped(rows)}
    return [(queue, id_, now[_key(queue)].get(id_, GONE)) for queue, id_ in pairs]


def _unchanged(queue: AnyQueue, versions: Mapping[str, str]) -> list[str]:
    """Return the ids whose version is unchanged."""
    now = queue.versions(versions)
    return [id_ for id_, version in versions.items() if now.get(id_) == version]


def _grouped(rows: Sequence[Row]) -> list[tuple[AnyQueue, dict[str, str]]]:
    """Return each queue with the versions of its ids."""
    groups: dict[tuple[str, str], tuple[AnyQueue, dict[str, str]]] = {}
    for queue, id_, version in rows:
        groups.setdefault(_key(queue), (queue, {}))[1][id_] = version
    return list(groups.values())


def _key(queue: AnyQueue) -> tuple[str, str]:
    return kind_of(queue), queue.name


def _that_fit(rows: Sequence[Row]) -> tuple[list[Row], bool]:
    """Return as many of *rows* as fit into one form, and whether some are left."""
    sizes = itertools.accumulate(len(quote(reference(*row), safe="")) + len("&row=") for row in rows)
    fit = sum(1 for size in sizes if size <= MOST_NAMED)
    return list(rows[:fit]), fit < len(rows)


def _hidden(verb: Verb, when: When | None, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the hidden fields of the preview: each row by its name and version.

    Conditions could be true of something else by the time that it is confirmed.
    """
    to = [] if when is None else [("when", request.form["when"])]
    return [("verb", verb.name), *to, *_search(verb).items(), *(("row", reference(*row)) for row in rows)]


def _search(verb: Verb) -> dict[str, Any]:
    """Return what the list was asked for, to go back to."""
    names = ("queue", *SCHEDULED) if verb.back == "entries.show" else ("name", *DEAD)
    return {name: request.form[name] for name in names if request.form.get(name)}


def _told(verb: Verb, count: int, confirmed: int) -> str:
    if count == confirmed:
        return f"{count:,} {verb.done}."
    rest = f"The other {confirmed - count:,}" if count else "What was chosen"
    why = "had gone meanwhile, was replaced, or was not to be moved any more"
    return f"{count:,} of {confirmed:,} {verb.done}. {rest} {why}."


def _delay(queue: AnyQueue) -> DelayQueue:
    if not isinstance(queue, DelayQueue):
        abort(400, f"{queue.name!r} is a RedisQueue: its messages do not wait for a time.")
    return queue


def _note(actions: Sequence[Action]) -> None:
    # The log first: it needs no Redis.
    for action in actions:
        known = {"user": action.user, "verb": action.verb, "queue": action.queue, "count": action.count}
        ids = [subject.id for subject in action.subjects]
        text = "%(verb)s by %(user)s: %(count)d of %(queue)s"
        logger.info(text, known, extra={"action": "audit", **known, "detail": action.detail, "ids": ids})
    for action in actions:
        context().audit.add(action)
