"""Attributes of all spans."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.tracing.provider import TRACER

TEXT_LENGTH: Final = 200
"""Most characters of a name in a span."""

PUBLISH: Final = "publish"
PROCESS: Final = "process"

TASK: Final = "celery.task_name"


def describe(task: str, id: str, queue: Any) -> dict[str, Any]:
    """Return the attributes for a task and its destination."""
    found = {"messaging.system": TRACER, "messaging.message.id": id, TASK: short_name(task)}
    return {**found, "messaging.destination.name": str(queue)[:TEXT_LENGTH]} if queue else found


def operation(name: str, kind: str) -> dict[str, str]:
    """Return the attributes for an operation on the message."""
    # The second name is for backends older than semantic conventions 1.26.
    return {"messaging.operation.name": name, "messaging.operation": kind}


def lateness(due_at: datetime, now: float) -> dict[str, Any]:
    """Return the attributes for the due time and the lateness in seconds at *now*."""
    late = round(max(0.0, now - due_at.timestamp()), 3)
    return {"redis_queue.due_at": due_at.isoformat(), "redis_queue.lateness": late}


def short_name(task: str) -> str:
    # In messages of protocol 1 only the body has the name.
    return str(task)[:TEXT_LENGTH] or "task"


def queue_of(envelope: Envelope) -> str:
    """Return the destination of the message, if it has one."""
    return envelope.queue or envelope.exchange
