"""Actions on a whole queue: pause, resume, put back, purge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from redis_queue.basics.options import counted
from redis_queue.catalog import AnyQueue
from redis_queue.errors import InvalidValueError
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Action, Choice, Plan, Result
from redis_queue.operate.listing import SearchReport, sized
from redis_queue.operate.queue_row import Faults
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.chunks import CHUNK


@dataclass(frozen=True, slots=True)
class One:
    """A single thing that the scope names: the function of an action returns the plan itself."""

    name: str
    scope: Mapping[str, bool] = field(default_factory=dict)
    at: str = ""

    def plan(self, action: Action, access: Access, choice: Choice) -> Plan:
        """Return what *action* would do to it; its arguments are the detail, unless the plan has another one."""
        found: Plan = action.function(access, choice)
        return replace(found, detail=found.detail or action.detail(choice))


def one_step(
    question: str, name: str, change: Callable[[], object], text: str, *, told: str = "", **known: Any
) -> Plan:
    """Return the plan of one *change* of the thing *name*; *known*: other fields.

    The result in words is *told*, or what *change* returns.
    """

    def run() -> Iterator[Result]:
        found = change()
        yield Result(1, tried=1, text=told or str(found))

    return Plan(question, 1, run, [name], text=text, **known)


def pause(access: Access, choice: Choice) -> Plan:
    """Stop claims until the queue is resumed; puts and acks go on."""
    queue = _redis_queue(access, choice)
    stats = queue.stats()
    text = (
        f"Nobody can claim its {counted(stats.ready, 'ready message')}, or messages put later, until it is resumed. "
        "Messages in flight are not affected."
    )
    nothing = "It is paused already" if stats.paused else ""
    told = f"{queue.name} paused"
    return one_step(f"Pause {queue.name}", queue.name, queue.pause, text, told=told, nothing=nothing)


def resume(access: Access, choice: Choice) -> Plan:
    """Allow claims again."""
    queue = _redis_queue(access, choice)
    stats = queue.stats()
    text = f"Its {counted(stats.ready, 'ready message')} can be claimed again."
    nothing = "" if stats.paused else "It is not paused"
    told = f"{queue.name} resumed"
    return one_step(f"Resume {queue.name}", queue.name, queue.resume, text, told=told, nothing=nothing)


def put_back(access: Access, choice: Choice) -> Plan:
    """Put back the messages of expired leases of this queue."""
    queue = _queue(access, choice)
    count = access.inspector.expired(queue) if choice.confirmed is None else choice.confirmed

    def run() -> Iterator[Result]:
        back = queue.put_back(count) if count else queue.put_back()
        counts = {"returned": back.returned, "dead": back.dead}
        text = f"{back.returned:,} returned, {back.dead:,} dead"
        yield Result(back.returned + back.dead, tried=count, text=text, counts=counts)

    text = (
        f"{counted(count, 'expired lease')}: messages can be claimed again, or become dead letters if their "
        "deliveries are used up."
    )
    nothing = "" if count else "No lease has expired"
    question = f"Put back expired leases of {queue.name}"
    return Plan(question, count, run, [queue.name], text=text, nothing=nothing)


def purge_plan(access: Access, choice: Choice) -> Plan:
    """Delete as many items as the *places* of queues have now: of the queue of a *kind*, or of all with a *name*.

    *noun* is the word for several items. Without a *kind*, errors of a queue do not end the work on the others.
    """
    kind, name, places = choice.scope.get("kind"), choice.scope["name"], choice.scope["places"]
    report = SearchReport()

    def size(queue: AnyQueue) -> int:
        stats = queue.stats()
        return sum(getattr(stats, "quarantined" if place == "quarantine" else place) for place in places)

    if kind is None:
        sizes = sized(access.queues(name, report.faults), size, report.faults)
    else:
        queue = access.queue(kind, name)
        sizes = [(queue, size(queue))]

    def run() -> Iterator[Result]:
        for queue, size in sizes:
            yield from _purge(access, queue, places, size, report.faults)

    total = sum(size for _, size in sizes)
    return Plan(
        question=f"Delete {total:,} {choice.scope['noun']}",
        count=total,
        run=run,
        queues=[queue.name for queue, size in sizes if size],
        detail=", ".join(places),
        report=report,
    )


def _purge(access: Access, queue: AnyQueue, places: Sequence[Any], size: int, faults: Faults) -> Iterator[Result]:
    left = size
    while left > 0:
        count = 0
        with faults.of_queue(queue):
            count = access.deletion(queue).purge(*places, limit=min(CHUNK, left))
        # Another process may have taken the rest.
        tried = count or left
        left -= tried
        yield Result(count, tried=tried)


def _queue(access: Access, choice: Choice) -> AnyQueue:
    return access.queue(choice.scope.get("kind", "queue"), choice.scope["name"])


def _redis_queue(access: Access, choice: Choice) -> RedisQueue:
    queue = _queue(access, choice)
    if not isinstance(queue, RedisQueue):
        raise InvalidValueError("only a RedisQueue can be paused; for a DelayQueue, stop its dispatchers instead")
    return queue


_target = One("queue", {"kind": True, "name": True})

PURGE: Final = Action(One("purge"), "purge", "Delete", "deleted", purge_plan, destroys=True)
"""Deletes all items of queues in one state: a command only."""

ACTIONS: Final = (
    Action(_target, "pause", "Pause", "paused", pause),
    Action(_target, "resume", "Resume", "resumed", resume),
    Action(_target, "putback", "Put back", "put back", put_back),
)
