"""Actions: a preview, then exactly what it showed, once, and a line in the audit. All come from the registry."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from flask import Blueprint, abort, flash, g, redirect, request, url_for
from werkzeug.wrappers import Response

from redis_queue.admission.flows import OF_QUEUE
from redis_queue.errors import WorkerRefusedError
from redis_queue.operate.actions.action import Action, Argument, Choice, Plan, Result, perform
from redis_queue.operate.actions.registry import action_of
from redis_queue.operate.actions.rows import Rows
from redis_queue.store.chunks import MANY
from redis_queue.store.keys import is_name
from redis_queue.web import entries, failures, queues, request_args, search
from redis_queue.web.context import context, page
from redis_queue.web.guard import require

pages = Blueprint("actions", __name__)

MAX_AT_ONCE: Final = 10_000
"""Maximum number of rows of one action, so that the request ends in time."""

MAX_FORM_BYTES: Final = 900_000
"""Maximum bytes of row references in one form; must be below MAX_FORM."""

NOT_CONFIRMED: Final = "This action was not confirmed: start with a preview."

_OPERATION: Final = re.compile(r"[\w-]{22}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a target: the address of the page that the user came from, and the conditions of its search."""

    back: Callable[[Mapping[str, Any]], str]
    conditions: Mapping[str, str] = field(default_factory=dict)


def _back_to_flow(scope: Mapping[str, Any]) -> str:
    """Return the address of the flow, or of its key; a queue that has none and is not paused has only its own page."""
    access, name = context().access, scope["name"]
    if access.flows.get(name) is not None:
        return url_for("flows.key" if "key" in scope else "flows.one", **scope)
    if name.startswith(OF_QUEUE) and access.celery_queues is not None:
        return url_for("queues.celery", name=name.removeprefix(OF_QUEUE))
    return url_for("flows.show")


def _back_to_schedule(scope: Mapping[str, Any]) -> str:
    """Return the address of the schedule; that of the list if there is none with this name."""
    name = scope["name"]
    is_known = is_name(name) and context().access.schedules.get(name) is not None
    return url_for("schedules.one", name=name) if is_known else url_for("schedules.show")


FORMS: Final = {
    "scheduled": Form(lambda scope: url_for("entries.show", **scope), entries.CONDITIONS),
    "dead": Form(lambda scope: url_for("entries.dead", **scope), entries.LETTER_CONDITIONS),
    "failures": Form(lambda scope: url_for("failures.show", **scope), failures.CONDITIONS),
    "messages": Form(lambda scope: url_for("queues.celery", **scope), queues.MESSAGE_CONDITIONS),
    "key-messages": Form(lambda scope: url_for("flows.key", **scope), queues.MESSAGE_CONDITIONS),
    "running": Form(lambda _: url_for("workers.running")),
    "queue": Form(lambda scope: url_for("queues.one", kind=scope["kind"], name=scope["name"])),
    "flow": Form(_back_to_flow),
    "schedule": Form(_back_to_schedule),
    "unique": Form(lambda _: url_for("flows.unique")),
    "worker": Form(lambda _: url_for("workers.show")),
    "tasks": Form(lambda scope: url_for("search.tasks", **scope), search.CONDITIONS),
}
"""The forms, by the names of targets."""


@pages.post("/actions/<target>/preview")
def preview(target: str) -> str:
    """Show what an action would do, with a form to confirm it."""
    action, form = _action(target)
    choice = _choice(action, form, target)
    plan = action.target.plan(action, context().access, choice)
    return page(
        "action.html",
        action=action,
        plan=plan,
        at=action.target.at,
        hidden=_hidden(action, form, plan),
        operation=secrets.token_urlsafe(16),
        back=form.back(_search(action, form)),
    )


@pages.post("/actions/<target>")
def act(target: str) -> Response:
    """Do exactly what a preview has shown, once."""
    action, form = _action(target)
    confirmed = request_args.number("confirmed", 0, 1, MANY)
    choice = replace(_choice(action, form, target), room=0, confirmed=confirmed)
    if not confirmed or request_args.flag("matching"):
        abort(400, NOT_CONFIRMED)
    plan = action.target.plan(action, context().access, choice)
    if plan.nothing and not plan.count:
        abort(409, f"{plan.nothing}.")
    if plan.count != confirmed:
        abort(400, NOT_CONFIRMED)
    _begin()
    total = Result()
    try:
        perform(context().access, action, plan, g.user, total)
        told = _told(action, plan, total)
    except WorkerRefusedError as error:
        told = [f"{error}."]
    if total.unwritten:
        flash(f"Not written to the audit: {total.unwritten}")
    for text in told:
        flash(text)
    return redirect(form.back(_search(action, form)), 303)


def _action(target: str) -> tuple[Action, Form]:
    """Return the action of the form, if its user may do it."""
    form = FORMS.get(target)
    if form is None:
        abort(404)
    request_args.reject_repeated(request.form, "row")
    action = action_of(target, request_args.text("verb") or "")
    require(action.verb)
    return action, form


def _choice(action: Action, form: Form, target: str) -> Choice:
    """Return what the form chooses: rows, those that match its search, or the one thing that it names."""
    scope: dict[str, Any] = {name: request_args.text(name, exact=True) for name in action.target.scope}
    for name, required in action.target.scope.items():
        if required and scope[name] is None:
            abort(400, f"Which {target}? Choose one from the list.")
    if "pid" in scope:
        scope["pid"] = request_args.number("pid", 0, 0, 1 << 31) or None
    arguments = {argument.name: _argument(argument) for argument in action.arguments}
    references = request.form.getlist("row")
    if not isinstance(action.target, Rows):
        return Choice(scope, arguments)
    if not references and not (form.conditions and request_args.flag("matching")):
        abort(400, f"{action.label} what? Tick some rows first.")
    if len(references) > MAX_AT_ONCE:
        abort(400, f"{len(references):,} rows: must be at most {MAX_AT_ONCE:,}.")
    return Choice(
        scope,
        arguments,
        references,
        conditions=request_args.conditions(form.conditions),
        most=MAX_AT_ONCE,
        room=MAX_FORM_BYTES,
    )


def _argument(argument: Argument) -> Any:
    text = request_args.text(argument.name, most=argument.most)
    if text is None and argument.missing:
        abort(400, argument.missing)
    return None if text is None else argument.value(text, context().zone)


def _hidden(action: Action, form: Form, plan: Plan) -> list[tuple[str, str]]:
    """Return the hidden fields of the preview: each row with its version.

    Conditions could match other rows by the time the form is confirmed.
    """
    names = [*(argument.name for argument in action.arguments), *action.target.scope, *form.conditions]
    sent = {name: request.form[name] for name in names if request.form.get(name)}
    rows = [("row", reference) for reference in plan.references]
    return [("verb", action.verb), *{**sent, **plan.fields}.items(), *rows]


def _search(action: Action, form: Form) -> dict[str, Any]:
    return {name: request.form[name] for name in (*action.target.scope, *form.conditions) if request.form.get(name)}


def _begin() -> None:
    """Refuse forms that do not come from a preview, and forms that were sent before."""
    operation = request_args.text("operation") or ""
    if not _OPERATION.fullmatch(operation):
        abort(400, NOT_CONFIRMED)
    if not context().audit.begin(operation):
        abort(409, "This form was sent before; the audit shows its effect. For more, start with a new preview.")


def _told(action: Action, plan: Plan, total: Result) -> list[str]:
    told = [f"{reason}." for reason in total.reasons]
    if plan.report.faults.rows:
        told.append(f"Skipped: {plan.report.faults.text()}.")
    if total.maybe_sent:
        told.append(f"{total.maybe_sent_text}.")
    left = total.left(plan)
    if total.text:
        told.append(f"{total.text}.")
    elif total.count == plan.count:
        told.append(f"{total.count:,} {action.past}.")
    else:
        skipped = f" Skipped: {left:,} ({plan.gone})." if left and plan.gone else ""
        told.append(f"{total.count:,} of {plan.count:,} {action.past}.{skipped}")
    return told
