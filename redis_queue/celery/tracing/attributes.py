"""What all spans say of a task."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.tracing.provider import TRACER

TEXT_LENGTH: Final = 200
"""Most characters that a span shows of a name."""

PUBLISH: Final = "publish"
PROCESS: Final = "process"

TASK: Final = "celery.task_name"


def describe(task: str, id: str, queue: Any) -> dict[str, Any]:
    """Return which task a span is about, and where it goes."""
    found = {"messaging.system": TRACER, "messaging.message.id": id, TASK: shown_name(task)}
    return {**found, "messaging.destination.name": str(queue)[:TEXT_LENGTH]} if queue else found


def operation(name: str, kind: str) -> dict[str, str]:
    """Return what is done to the message."""
    # The second name is what backends of before semantic conventions 1.26 look for.
    return {"messaging.operation.name": name, "messaging.operation": kind}


def lateness(due_at: datetime, now: float) -> dict[str, Any]:
    """Return when the task was due, and by how many seconds it is late at *now*."""
    late = round(max(0.0, now - due_at.timestamp()), 3)
    return {"redis_queue.due_at": due_at.isoformat(), "redis_queue.lateness": late}


def shown_name(task: str) -> str:
    """Return the name of a task as a span shows it."""
    # Only the body of a message of protocol 1 tells.
    return str(task)[:TEXT_LENGTH] or "task"


def queue_of(envelope: Envelope) -> str:
    """Return where the message goes, as far as it tells."""
    return envelope.queue or envelope.exchange
