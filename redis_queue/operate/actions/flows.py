"""Actions on flows and on the keys of unique tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from redis_queue.admission.rules import FlowState
from redis_queue.errors import InvalidValueError
from redis_queue.operate import flows
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Action, Argument, Choice, Plan, Result
from redis_queue.operate.actions.queues import One, one_step
from redis_queue.operate.audit import Subject
from redis_queue.operate.flows import LimitsRow

_NUMBER: Final = f"N|{flows.NONE}"
_RATE: Final = f"R|{flows.NONE}"

LIMITS: Final = (
    Argument("limit", "Most messages that run at once; 0 admits none.", metavar=_NUMBER),
    Argument("rate", "Most starts per s, m, h or d, such as 100/m.", metavar=_RATE),
    Argument("limit_each", "The limit of each key of a fair flow.", metavar=_NUMBER),
    Argument("rate_each", "The rate of each key of a fair flow.", metavar=_RATE),
    Argument("burst", "Most starts that may come at once.", metavar="N"),
)


def pause(access: Access, choice: Choice) -> Plan:
    """Start no more messages of NAME until flow resume; what runs goes on.

    NAME is a flow, or any queue: queue:<name>.

    Example: redis-queue flow pause queue:mail
    """
    state = flows.flow_or_queue(access, choice.scope["name"])
    text = (
        f"No message starts until it is resumed: neither the {state.waiting:,} that wait in this flow, nor later ones. "
        f"The {state.running:,} that run go on."
    )
    nothing = "It is paused already" if state.paused else ""
    return _step(access, "Pause", state, lambda: access.flows.pause(state.name), text, nothing=nothing)


def resume(access: Access, choice: Choice) -> Plan:
    """Start messages of NAME again.

    Example: redis-queue flow resume queue:mail
    """
    state = flows.flow_or_queue(access, choice.scope["name"])
    text = f"Messages start again, as the limits admit. {state.waiting:,} wait in this flow."
    nothing = "" if state.paused else "It is not paused"
    return _step(access, "Resume", state, lambda: access.flows.resume(state.name), text, nothing=nothing)


def set_limits(access: Access, choice: Choice) -> Plan:
    """Change limits of the flow NAME in all workers, until flow reset: what runs goes on.

    "none" removes a limit. In a flow with key=, --limit and --rate count for each key. Values that are not given stay.

    Example: redis-queue flow set queue:mail --limit 10 --rate 100/m

    Example: redis-queue flow set queue:mail --rate none
    """
    state = _with_limits(access, choice)
    texts = {name: text for name, text in choice.arguments.items() if text is not None}
    if not texts:
        raise InvalidValueError("change what? Give a limit, a rate or a burst")
    changes, before = flows.read_changes(state, texts), flows.arguments_of(state)
    text = (
        "The new limits are in force in all workers at once, until they are reset. "
        f"The {state.running:,} messages that run go on."
    )
    rows = [(*before[name], value) for name, value in changes.items()]
    change, detail = partial(access.flows.set, state.name, **changes), flows.changes_text(changes)
    return _step(access, "Change the limits of", state, change, text, detail=detail, changes=rows)


def reset(access: Access, choice: Choice) -> Plan:
    """Undo all that flow set has changed: the limits in the code are in force again. A pause stays.

    It also forgets how far the rate of the whole flow is used up.

    Example: redis-queue flow reset queue:mail
    """
    state = _with_limits(access, choice)
    stays = " The flow stays paused." if state.paused else ""
    text = (
        f"The limits in the code are in force again in all workers: {LimitsRow.of(state.declared).text}. "
        f"Now: {LimitsRow.of(state.limits).text}. How far the rate of the whole flow is used up is forgotten.{stays}"
    )
    return _step(access, "Reset the limits of", state, lambda: access.flows.reset(state.name), text)


def _step(access: Access, verb: str, state: FlowState, change: Callable[[], object], text: str, **known: Any) -> Plan:
    """Return the plan of one *change* of a flow; its result in words is what is in force then."""

    def step() -> str:
        change()
        return flows.in_force(flows.flow_or_bare(access, state.name))

    return one_step(f"{verb} {state.name}", state.name, step, text, **known)


def release(access: Access, choice: Choice) -> Plan:
    """Free KEY of TASK, so that its next call is sent. The task that owns it waits or runs as before.

    Leave out KEY if all calls of the task have the same one. Exits with code 1 if no task owns it.

    Example: redis-queue unique release shop.sync order:7
    """
    task, key, seen = choice.scope["task"], choice.scope.get("key") or "", choice.scope.get("id")
    name = name_of(task, key)
    owner = access.unique.get(task, key)
    if owner is None:
        return Plan(f"Free {name}", 0, lambda: iter(()), nothing=f"no task owns {name}")
    owned_by = seen or owner.task_id

    def run() -> Iterator[Result]:
        # False if that task no longer owns it.
        if access.unique.release(task, key, task_id=owned_by):
            yield Result(1, tried=1, text=f"{name} is free; the task {owned_by} goes on")
        else:
            yield Result(0, tried=1)

    text = (
        f"The next call with this key is sent. The task {owned_by} ({owner.state}) goes on, so two tasks with this key "
        f"may run at once. Otherwise the key is free at {owner.until:%Y-%m-%d %H:%M:%S} UTC at the latest."
    )
    nothing = "" if owned_by == owner.task_id else f"Another task owns this key now: {owner.task_id} ({owner.state})"
    subjects = [Subject(owned_by, task, task)]
    gone = f"the task {owned_by!r} no longer owns {name}"
    fields = {"id": owned_by}
    return Plan(f"Free {name}", 1, run, [task], key, subjects, text=text, nothing=nothing, fields=fields, gone=gone)


def name_of(task: str, key: str) -> str:
    """Return the name of a key for messages; "" is the key of a task without keys."""
    return f"the key {key!r} of {task}" if key else f"the key of {task}"


def _with_limits(access: Access, choice: Choice) -> FlowState:
    state = flows.flow_or_queue(access, choice.scope["name"])
    if not flows.has_limits(state):
        if access.celery_queues is None:
            access.flows.find(state.name)
        raise InvalidValueError(f"{state.name}: has no flow; add one to redis_queue_flow in the settings of the app")
    return state


_flow = One("flow", {"name": True})
_key = One("unique", {"task": True, "key": False, "id": False})

ACTIONS: Final = (
    Action(_flow, "flow-pause", "Pause", "paused", pause),
    Action(_flow, "flow-resume", "Resume", "resumed", resume),
    Action(_flow, "flow-set", "Change", "changed", set_limits, LIMITS),
    Action(_flow, "flow-reset", "Reset", "reset", reset),
    Action(_key, "unique-release", "Release", "released", release, destroys=True),
)
