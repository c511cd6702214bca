"""TaskEntry: a delayed task in readable form, and the conditions under which it is meant."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from redis_queue.basics.times import from_ms
from redis_queue.celery.message.body import json_body, retries_of
from redis_queue.celery.message.entry import TaskCall, content_of
from redis_queue.celery.message.envelope import MAX_MESSAGE_NAME, Envelope, priority_of
from redis_queue.errors import InvalidValueError
from redis_queue.model import Entry, Item

_TYPED: Final = {"__type__", "__value__"}
_DECIMAL: Final = re.compile(r"-?\d{1,30}(\.\d{1,30})?", re.ASCII)
_SHORT: Final = 64
"""Maximum characters of a time or a UUID."""

MAX_REPR: Final = 20_000
"""Maximum characters of arguments; Celery itself cuts them at a thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """One delayed task. *task* is "" if this version cannot read the message."""

    id: str
    task: str = ""
    due_at: datetime
    stored_at: datetime
    deliveries: int
    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    priority: int = 0
    retries: int = 0
    expires_at: datetime | None = None
    stamps: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, Any] = field(default_factory=dict)
    args: str = ""
    kwargs: str = ""

    @classmethod
    def of(cls, entry: Entry) -> TaskEntry:
        """Return *entry* as a task."""
        known: dict[str, Any] = {}
        with suppress(InvalidValueError):
            message = content_of(entry)
            known = _of_envelope(message) if isinstance(message, Envelope) else _of_call(message)
        return cls(id=entry.id, due_at=entry.due_at, stored_at=entry.put_at, deliveries=entry.deliveries, **known)

    @classmethod
    def of_item(cls, item: Item) -> TaskEntry:
        """Return *item* as a task."""
        unknown = from_ms(0)
        put_at, at = item.put_at or unknown, item.at or unknown
        return cls.of(Entry(item.id, item.body, item.headers, put_at, at, item.deliveries))


def _of_envelope(envelope: Envelope) -> dict[str, Any]:
    headers = envelope.headers
    call = headers if envelope.task else _of_protocol_1(envelope)
    return {
        "task": str(call.get("task") or "")[:MAX_MESSAGE_NAME],
        "queue": envelope.queue,
        "exchange": envelope.exchange,
        "routing_key": envelope.routing_key,
        "priority": envelope.priority,
        "retries": retries_of(envelope),
        "expires_at": None if envelope.expires_at is None else from_ms(envelope.expires_at),
        "stamps": {name: restore_types(value) for name, value in _mapping(headers.get("stamps")).items()},
        "headers": headers,
        "args": str(call.get("argsrepr", ""))[:MAX_REPR],
        "kwargs": str(call.get("kwargsrepr", ""))[:MAX_REPR],
    }


def _of_protocol_1(envelope: Envelope) -> Mapping[str, Any]:
    body = json_body(envelope) or {}
    return {**body, "argsrepr": repr(body.get("args")), "kwargsrepr": repr(body.get("kwargs"))} if body else body


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _of_call(call: TaskCall) -> dict[str, Any]:
    options = call.options
    return {
        "task": call.task[:MAX_MESSAGE_NAME],
        **{name: str(options.get(name) or "")[:MAX_MESSAGE_NAME] for name in ("queue", "exchange", "routing_key")},
        "priority": priority_of(options),
        "headers": _mapping(options.get("headers")),
        "args": str(options.get("argsrepr") or repr(tuple(call.args)))[:MAX_REPR],
        "kwargs": str(options.get("kwargsrepr") or repr(dict(call.kwargs)))[:MAX_REPR],
    }


def restore_types(value: Any) -> Any:
    """Return plain JSON with UUIDs, datetimes, decimals and bytes converted to Python values.

    Only small values are converted, since a decimal with an exponent may be of any size. The others stay as written.
    """
    if isinstance(value, list):
        return [restore_types(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if value.keys() != _TYPED:
        return {name: restore_types(item) for name, item in value.items()}
    kind = value["__type__"]
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    try:
        return value if reader is None else reader(value["__value__"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return value


def _short(text: Any) -> str:
    if not isinstance(text, str) or len(text) > _SHORT:
        raise ValueError(f"expected text of up to {_SHORT} characters")
    return text


def _decimal(text: Any) -> Decimal:
    if not _DECIMAL.fullmatch(_short(text)):
        raise ValueError("expected digits")
    return Decimal(text)


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "uuid": lambda value: UUID(_short(value["hex"])),
    "datetime": lambda value: datetime.fromisoformat(_short(value)),
    "decimal": _decimal,
    "bytes": lambda value: value.encode(),
    "base64": lambda value: base64.b64decode(value, validate=True),
}
