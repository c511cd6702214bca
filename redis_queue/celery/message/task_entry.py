"""TaskEntry: a delayed task in readable form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from redis_queue.basics.times import from_ms
from redis_queue.celery.message.envelope import MAX_NAME, Envelope, priority_of
from redis_queue.celery.message.protocol import json_body, retries_of
from redis_queue.celery.message.reading import read_entry
from redis_queue.celery.message.task_call import TaskCall
from redis_queue.celery.message.typed_values import restore_types
from redis_queue.errors import InvalidValueError
from redis_queue.model import Entry


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """One delayed task. *task* is "" if this version cannot read the message."""

    id: str
    task: str
    due_at: datetime
    stored_at: datetime
    deliveries: int
    queue: str
    exchange: str
    routing_key: str
    priority: int
    retries: int
    expires_at: datetime | None
    stamps: Mapping[str, Any]
    headers: Mapping[str, Any]
    args: str
    kwargs: str

    @classmethod
    def of(cls, entry: Entry) -> TaskEntry:
        """Return *entry* as a task."""
        known: dict[str, Any] = {
            "id": entry.id,
            "due_at": entry.due_at,
            "stored_at": entry.put_at,
            "deliveries": entry.deliveries,
        }
        try:
            message = read_entry(entry)
            return cls(**known, **(_of_envelope(message) if isinstance(message, Envelope) else _of_call(message)))
        except InvalidValueError:
            return cls(**known, **_NOTHING)


MAX_TEXT: Final = 20_000
"""Most characters of arguments; Celery itself cuts them at a thousand."""

_NOTHING: Mapping[str, Any] = {
    **dict.fromkeys(("task", "queue", "exchange", "routing_key", "args", "kwargs"), ""),
    "priority": 0,
    "retries": 0,
    "expires_at": None,
    "stamps": {},
    "headers": {},
}


def _of_envelope(envelope: Envelope) -> dict[str, Any]:
    headers = envelope.headers
    call = headers if envelope.task else _of_protocol_1(envelope)
    return {
        "task": str(call.get("task") or "")[:MAX_NAME],
        "queue": envelope.queue,
        "exchange": envelope.exchange,
        "routing_key": envelope.routing_key,
        "priority": envelope.priority,
        "retries": retries_of(envelope),
        "expires_at": None if envelope.expires_at is None else from_ms(envelope.expires_at),
        "stamps": {name: restore_types(value) for name, value in _mapping(headers.get("stamps")).items()},
        "headers": headers,
        "args": str(call.get("argsrepr", ""))[:MAX_TEXT],
        "kwargs": str(call.get("kwargsrepr", ""))[:MAX_TEXT],
    }


def _of_protocol_1(envelope: Envelope) -> Mapping[str, Any]:
    body = json_body(envelope) or {}
    return {**body, "argsrepr": repr(body.get("args")), "kwargsrepr": repr(body.get("kwargs"))} if body else body


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _of_call(call: TaskCall) -> dict[str, Any]:
    options = call.options
    return {
        **_NOTHING,
        "task": call.task[:MAX_NAME],
        **{name: str(options.get(name) or "")[:MAX_NAME] for name in ("queue", "exchange", "routing_key")},
        "priority": priority_of(options),
        "headers": _mapping(options.get("headers")),
        "args": str(options.get("argsrepr") or repr(tuple(call.args)))[:MAX_TEXT],
        "kwargs": str(options.get("kwargsrepr") or repr(dict(call.kwargs)))[:MAX_TEXT],
    }
