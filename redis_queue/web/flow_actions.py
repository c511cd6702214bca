"""Actions on a flow: pause, resume, change its limits, reset them; each with a preview."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flask import Blueprint, abort, flash, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from redis_queue.errors import InvalidValueError
from redis_queue.flow.model import FlowState
from redis_queue.operate import flows
from redis_queue.operate.audit import Action
from redis_queue.operate.flows import ARGUMENTS, PAUSE, RESET, RESUME, SET, LimitsRow, arguments_of
from redis_queue.web import request_args
from redis_queue.web.confirmation import NOT_CONFIRMED, begin_operation, confirmed_count, new_operation
from redis_queue.web.context import context
from redis_queue.web.flows import source_of
from redis_queue.web.permissions import require

pages = Blueprint("flow_actions", __name__)

VERBS: Final = {PAUSE: "Pause", RESUME: "Resume", SET: "Change the limits of", RESET: "Reset the limits of"}
"""Verbs, and their labels."""


@pages.post("/flow/preview")
def preview() -> str:
    """Show the effect on a flow, with a form to confirm it."""
    verb, state, changes = _choice()
    before = arguments_of(state)
    return render_template(
        "flow_action.html",
        verb=verb,
        question=VERBS[verb],
        state=state,
        changes=[(*before[name], value) for name, value in changes.items()],
        now=LimitsRow.of(state.limits).text,
        code=LimitsRow.of(state.declared).text,
        hidden=[("verb", verb), ("name", state.name), *_texts().items()],
        operation=new_operation(),
        back=_back(state.name),
    )


@pages.post("/flow")
def act() -> Response:
    """Change one flow, once."""
    verb, state, changes = _choice()
    if confirmed_count(1) != 1:
        abort(400, NOT_CONFIRMED)
    begin_operation()
    access, at, name = context().access, context().inspector.now(), state.name
    if verb == PAUSE:
        found = flows.pause(access, name)
    elif verb == RESUME:
        found = flows.resume(access, name)
    elif verb == SET:
        found = access.flows.set(name, **changes)
    else:
        found = access.flows.reset(name)
    context().audit.record([Action(at, g.user, verb, name, 1, flows.changes_text(changes))])
    flash(f"{flows.in_force(found)}.")
    return redirect(_back(name), 303)


def _choice() -> tuple[str, FlowState, Mapping[str, Any]]:
    """Return the verb, the flow and the changes of the form."""
    form = request.form
    request_args.reject_repeated(form)
    verb, name = require(request_args.choice("verb", VERBS, "", form)), request_args.text("name", form, exact=True)
    if name is None:
        abort(400, "Which flow? Choose one from the list.")
    state = flows.flow_or_queue(context().access, name)
    if verb in (PAUSE, RESUME):
        return verb, state, {}
    if not flows.has_limits(state):
        raise InvalidValueError(f"{name}: has no flow; add one to redis_queue_flow in the settings of the app")
    if verb == RESET:
        return verb, state, {}
    texts = _texts()
    if not texts:
        abort(400, "Change what? Fill in a limit, a rate or a burst.")
    return verb, state, flows.read_changes(state, texts)


def _texts() -> dict[str, str]:
    """Return the new values of the form; an empty field leaves its value as it is, see Flows.set."""
    if request.form.get("verb") != SET:
        return {}
    found = {name: request_args.text(name, request.form) for name in ARGUMENTS["fair"]}
    return {name: text for name, text in found.items() if text is not None}


def _back(name: str) -> str:
    """Return the address of the flow; a queue that has none and is not paused has only its own page."""
    if context().access.flows.get(name) is not None:
        return url_for("flows.one", name=name)
    queue = source_of(name)["queue"]
    if queue and context().access.celery_queues is not None:
        return url_for("celery_queue.show", name=queue)
    return url_for("flows.show")
