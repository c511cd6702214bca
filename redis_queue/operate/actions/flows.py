"""Actions on flows and on the keys of unique tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from redis_queue.admission.rules import FlowState, KeyState
from redis_queue.errors import InvalidValueError
from redis_queue.operate import flow_keys, flows
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

    NAME is a flow, or any queue: queue:<name>. With --key, only the messages of this key wait.

    Example: redis-queue flow pause queue:mail

    Example: redis-queue flow pause queue:reports --key acme
    """
    state = _found(access, choice, flows.flow_or_queue)
    text = (
        f"No message starts until it is resumed: neither those that wait {state.within} ({state.waiting:,}), nor later "
        f"ones. Running messages go on: {state.running:,}."
    )
    nothing = "It is paused already" if state.paused else ""
    return state.step(access, "Pause", access.flows.pause, text, nothing=nothing)


def resume(access: Access, choice: Choice) -> Plan:
    """Start messages of NAME again, or of one key of it.

    Example: redis-queue flow resume queue:mail
    """
    state = _found(access, choice, flows.flow_or_queue)
    text = f"Messages start again, as the limits admit. {state.waiting:,} wait {state.within}."
    nothing = "" if state.paused else "It is not paused"
    return state.step(access, "Resume", access.flows.resume, text, nothing=nothing)


def set_limits(access: Access, choice: Choice) -> Plan:
    """Change limits of the flow NAME in all workers, until flow reset: what runs goes on.

    "none" removes a limit. In a flow with key=, --limit and --rate count for each key. Values that are not given stay.
    With --key, --limit, --rate and --burst are those of this key alone: up to 1,000 keys of a flow.

    Example: redis-queue flow set queue:mail --limit 10 --rate 100/m

    Example: redis-queue flow set queue:reports --key acme --limit 1

    Example: redis-queue flow set queue:mail --rate none
    """
    state = _found(access, choice, _with_limits)
    texts = {name: text for name, text in choice.arguments.items() if text is not None}
    if not texts:
        raise InvalidValueError("change what? Give a limit, a rate or a burst")
    changes, before = flows.read_changes(state.flow, texts, of_key=state.key is not None), state.limits
    text = (
        "The new limits are in force in all workers at once, until they are reset. "
        f"Running messages go on: {state.running:,}."
    )
    rows = [(*before[name], value) for name, value in changes.items()]
    change, detail = partial(access.flows.set, **changes), flows.changes_text(changes)
    return state.step(access, "Change the limits of", change, text, detail=detail, changes=rows)


def reset(access: Access, choice: Choice) -> Plan:
    """Undo all that flow set has changed: the limits in the code are in force again. A pause stays.

    It also forgets how far the rate of the whole flow is used up. What was set for single keys stays: reset them one by
    one with --key.

    Example: redis-queue flow reset queue:mail
    """
    state = _found(access, choice, _with_limits)
    stays = f" The {'flow' if state.key is None else 'key'} stays paused." if state.paused else ""
    if state.key is not None:
        text = f"The limits of every key are in force for it again. How far its rate is used up is forgotten.{stays}"
    else:
        text = (
            "The limits in the code are in force again in all workers: "
            f"{LimitsRow.of(state.flow.declared).text}. Now: {LimitsRow.of(state.flow.limits).text}. "
            f"How far the rate of the whole flow is used up is forgotten.{stays}"
        )
    return state.step(access, "Reset the limits of", access.flows.reset, text)


@dataclass(frozen=True, slots=True)
class _FlowOrKey:
    """What an action acts on: a flow, or one *key* of it."""

    flow: FlowState
    key: KeyState | None

    running = property(lambda self: (self.key or self.flow).running)
    waiting = property(lambda self: (self.key or self.flow).waiting)
    paused = property(lambda self: (self.key or self.flow).paused)
    within = property(lambda self: "in this flow" if self.key is None else "with this key")

    @property
    def limits(self) -> dict[str, tuple[str, int | str | None]]:
        """The label and the value in force of each argument of flow set."""
        return flows.arguments_of(self.flow) if self.key is None else flow_keys.limits_of_key(self.flow, self.key)

    def step(self, access: Access, verb: str, change: Callable[..., object], text: str, **known: Any) -> Plan:
        """Return the plan of one *change*; its result in words is what is in force then."""
        name, key = self.flow.name, None if self.key is None else self.key.key

        def step() -> str:
            if key is None:
                change(name)
                return flows.in_force(flows.flow_or_bare(access, name))
            change(name, key=key)
            return flow_keys.key_in_force(name, access.flows.key(name, key))

        if key is not None:
            known["detail"] = ", ".join(filter(None, [f"key {key}", known.get("detail", "")]))
        if self.key is not None and not flow_keys.is_known(self.key):
            known["warnings"] = ["No message of this key runs or waits"]
        return one_step(f"{verb} {name}" if key is None else f"{verb} {name_of(name, key)}", name, step, text, **known)


def _found(access: Access, choice: Choice, find: Callable[[Access, str], FlowState]) -> _FlowOrKey:
    """Return what *choice* names. Raises InvalidValueError for a key of a flow that has none."""
    state, key = find(access, choice.scope["name"]), choice.scope.get("key")
    return _FlowOrKey(state, None if key is None else access.flows.key(state.name, key))


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


def _with_limits(access: Access, name: str) -> FlowState:
    state = flows.flow_or_queue(access, name)
    if not flows.has_limits(state):
        if access.celery_queues is None:
            access.flows.find(state.name)
        raise InvalidValueError(f"{state.name}: has no flow; add one to redis_queue_flow in the settings of the app")
    return state


_flow = One("flow", {"name": True, "key": False})
_key = One("unique", {"task": True, "key": False, "id": False})

ACTIONS: Final = (
    Action(_flow, "flow-pause", "Pause", "paused", pause),
    Action(_flow, "flow-resume", "Resume", "resumed", resume),
    Action(_flow, "flow-set", "Change", "changed", set_limits, LIMITS),
    Action(_flow, "flow-reset", "Reset", "reset", reset),
    Action(_key, "unique-release", "Release", "released", release, destroys=True),
)
