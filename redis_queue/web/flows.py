"""The pages of flows: a list, one flow with its limits and its keys, and one key; and that of unique tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from flask import Blueprint, abort, render_template

from redis_queue.admission.flows import OF_QUEUE, check_flow_name
from redis_queue.admission.owners import Owner
from redis_queue.admission.rules import FlowState
from redis_queue.basics.key_template import check_key
from redis_queue.errors import InvalidValueError
from redis_queue.operate.flow_keys import Keys, key_rows, limits_of_key, own_limits, set_text
from redis_queue.operate.flows import KINDS, LABELS, LimitsRow, arguments_of, has_limits, is_changed, without_key
from redis_queue.operate.items import Messages
from redis_queue.operate.listing import Page
from redis_queue.store.ids import is_id
from redis_queue.store.keys import MAX_NAME
from redis_queue.web import request_args
from redis_queue.web.context import context, page
from redis_queue.web.queues import MESSAGE_CONDITIONS
from redis_queue.web.request_args import ROWS

pages = Blueprint("flows", __name__)


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
            (state, LimitsRow.of(state.limits), is_changed(state), _passes(check_flow_name, state.name))
            for state in flows.states(names[offset:end])
        ],
        total=len(names),
        offset=offset,
        next=end if end < len(names) else None,
        name=name,
    )


@pages.get("/flow")
def one() -> str:
    """Show one flow, and a page of its keys."""
    request_args.allow("name", "part", "changed", "after", "limit")
    access, state = context().access, _flow()
    part, only_changed, start = request_args.text("part") or "", request_args.flag("changed"), request_args.cursor()
    keys = Keys(access, state.name, part, changed=only_changed)
    nothing = "no key is paused, or has limits of its own" if only_changed else "no message runs or waits"
    found: dict[str, Any] = {"page": Page((), None, 0)}
    if state.kind:
        found = request_args.searched(keys, (), start, nothing, request_args.cursor_text)
    items, are_all = found["page"].items, not (part or only_changed or start or found["page"].next)
    now, code = LimitsRow.of(state.limits), LimitsRow.of(state.declared)
    return page(
        "flow.html",
        state=state,
        changed=is_changed(state),
        has_limits=has_limits(state),
        kind=KINDS.get(state.kind, ""),
        limits=[row for row in _rows(now, code) if row[1:] != (None, None)],
        arguments=[(argument, *row) for argument, row in arguments_of(state).items()],
        rows=[
            (row, set_text(own_limits(row.state), paused=row.state.paused), _passes(check_key, row.state.key))
            for row in key_rows(access, state.name, items)
        ],
        rest=without_key(state, items, are_all=are_all),
        part=part,
        only_changed=only_changed,
        **source_of(state.name),
        **found,
    )


@pages.get("/flow/key")
def key() -> str:
    """Show one key of a flow, and its messages that match the search."""
    request_args.allow("name", "key", *MESSAGE_CONDITIONS, "after", "limit", "body")
    access, flow, name = context().access, _flow(), request_args.required("key", "a key from the page of the flow")
    state = access.flows.key(flow.name, name)
    messages, start = (
        Messages(access, flow.name, request_args.conditions(MESSAGE_CONDITIONS), name),
        request_args.cursor(),
    )
    found = request_args.searched(messages, MESSAGE_CONDITIONS, start, "no message waits", request_args.cursor_text)
    return page(
        "flow_key.html",
        state=state,
        own=set_text(own_limits(state), paused=state.paused),
        arguments=[(argument, *row) for argument, row in limits_of_key(flow, state).items()],
        scope={"name": flow.name, "key": name},
        reach=Messages.reach,
        **found,
    )


def _flow() -> FlowState:
    """Return the flow that the address names; an unknown one gets status 404."""
    name = check_flow_name(request_args.required("name", "a flow from the list of all flows"))
    try:
        return context().access.flows.find(name)
    except InvalidValueError as error:
        abort(404, f"{error}.")


def source_of(name: str) -> dict[str, str]:
    """Return the queue or the task whose messages the flow *name* has, for a link to its page; "" for the other."""
    if name.startswith(OF_QUEUE):
        return {"queue": name.removeprefix(OF_QUEUE), "task": ""}
    return {"queue": "", "task": name}


def _passes(check: Callable[[str], str], text: str) -> bool:
    """Return whether an address can name this flow or key; other programs may have written others."""
    with contextlib.suppress(InvalidValueError):
        return check(text).isprintable()
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
