"""Do what a user of the command line or the dashboard does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redis_queue.celery.queues.message import WaitingMessage
from redis_queue.monitor.model import RunningTask
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Choice, Result, perform
from redis_queue.operate.actions.registry import action_of
from redis_queue.operate.actions.workers import reference


def act(access: Access, target: str, verb: str, *, arguments: dict[str, Any] | None = None, **choice: Any) -> Result:
    """Plan an action on *choice*, the fields of a Choice, and do it; return its result."""
    action, total = action_of(target, verb), Result()
    plan = action.target.plan(action, access, Choice(arguments=arguments or {}, **choice))
    perform(access, action, plan, "a test", total)
    return total


def references_of(messages: Iterable[WaitingMessage]) -> list[str]:
    """Return the references of *messages*, as rows of a form have them."""
    return [message.element.reference for message in messages]


def stop(access: Access, task: RunningTask, *, soft: bool = False) -> Result:
    """Terminate one run, as a form of the dashboard does once it is confirmed."""
    return act(access, "running", "terminate", arguments={"soft": soft}, references=[reference(task)], confirmed=1)


def shut_down(access: Access, worker: str) -> None:
    act(access, "worker", "shutdown", scope={"name": worker})


def resize(access: Access, worker: str, size: int) -> None:
    act(access, "worker", "resize", scope={"name": worker}, arguments={"size": size})
