"""The pages of flows: a list, and one flow with its limits and its keys; and that of unique tasks."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from flask import Blueprint, abort, render_template

from redis_queue.admission.flows import OF_QUEUE, check_flow_name
from redis_queue.admission.owners import Owner
from redis_queue.errors import InvalidNameError, InvalidValueError
from redis_queue.operate.flows import KINDS, LABELS, LimitsRow, arguments_of, has_limits, is_changed, without_key
from redis_queue.store.ids import is_id
from redis_queue.store.keys import MAX_NAME
from redis_queue.web import request_args
from redis_queue.web.context import context, page
from redis_queue.web.request_args import ROWS

pages = Blueprint("flows", __name__)

MAX_KEYS: Final = 100
"""Maximum number of keys that the page of a flow lists."""


@pages.get("/flows")
def show() -> str:
    """List the flows, and the paused queues, by name."""
    request_args.allow("name", "offset")
    name, offset = request_args.text("name"), request_args.offset()
    flows = context().access.flows
    names = flows.names(name or "")
    end = offset + ROWS
    return render_template(
        "flows.html",
        rows=[
            (state, LimitsRow.of(state.limits), is_changed(state), is_flow_name(state.name))
            for state in flows.states(names[offset:end])
        ],
        total=len(names),
        offset=offset,
        next=end if end < len(names) else None,
        name=name,
    )


@pages.get("/flow")
def one() -> str:
    """Show one flow."""
    request_args.allow("name")
    access, name = context().access, request_args.text("name", exact=True)
    if name is None:
        raise InvalidNameError("name is missing: choose a flow from the list of all flows")
    check_flow_name(name)
    try:
        state = access.flows.find(name)
    except InvalidValueError as error:
        abort(404, f"{error}.")
    now, code = LimitsRow.of(state.limits), LimitsRow.of(state.declared)
    keys = access.flows.keys(name, MAX_KEYS + 1) if state.kind else []
    return render_template(
        "flow.html",
        state=state,
        changed=is_changed(state),
        has_limits=has_limits(state),
        kind=KINDS.get(state.kind, ""),
        limits=[row for row in _rows(now, code) if row[1:] != (None, None)],
        arguments=[(argument, *row) for argument, row in arguments_of(state).items()],
        rows=keys[:MAX_KEYS],
        more=len(keys) > MAX_KEYS,
        rest=without_key(state, keys, are_all=len(keys) <= MAX_KEYS),
        **source_of(name),
    )


def source_of(name: str) -> dict[str, str]:
    """Return the queue or the task whose messages the flow *name* has, for a link to its page; "" for the other."""
    if name.startswith(OF_QUEUE):
        return {"queue": name.removeprefix(OF_QUEUE), "task": ""}
    return {"queue": "", "task": name}


def is_flow_name(name: str) -> bool:
    """Return whether a flow can have this name; other programs may have written others."""
    with contextlib.suppress(InvalidValueError):
        return bool(check_flow_name(name))
    return False


def _rows(now: LimitsRow, code: LimitsRow) -> list[tuple[str, Any, Any]]:
    return [(label, getattr(now, field), getattr(code, field)) for field, label in LABELS.items()]


@pages.get("/unique")
def unique() -> str:
    """List the owners of keys, those first whose time ends first."""
    request_args.allow("task", "offset")
    part, offset = request_args.text("task"), request_args.offset()
    found = context().access.unique.page(part or "", limit=ROWS, offset=offset)
    end = offset + ROWS
    return page(
        "unique.html",
        rows=[(owner, can_release(owner)) for owner in found.owners],
        total=found.total,
        offset=offset,
        next=end if end < found.total else None,
        part=part,
    )


def can_release(owner: Owner) -> bool:
    """Return whether a form can name this owner: its texts are printable, and no other program wrote them."""
    return 0 < len(owner.task) <= MAX_NAME and f"{owner.task}{owner.key}".isprintable() and is_id(owner.task_id)
