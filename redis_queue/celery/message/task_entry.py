"""TaskEntry: a delayed task in readable form, and the conditions under which it is meant."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypedDict
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


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions on tasks and messages in any place, all of which must hold; None: any.

    *task* is the whole name of the task, *task_part* a part of it, *text* a part of its arguments, or of the text of
    its exception. *stamp* maps each name of a stamp to a value, or to several values of which one must match. *reason*
    is a part of why a message died, *exception* the name of a class, with or without its module. *due_before* and
    *due_after* (inclusive) limit its time: when it is due, or failed. They may be spans from now.
    """

    task: str | None = None
    task_part: str | None = None
    queue: str | None = None
    id_prefix: str | None = None
    stamp: Mapping[str, Any] | None = None
    text: str | None = None
    due_before: datetime | timedelta | None = None
    due_after: datetime | timedelta | None = None
    reason: str | None = None
    exception: str | None = None
    worker: str | None = None

    def __bool__(self) -> bool:
        return self.has(*(item.name for item in fields(self)))

    def has(self, *names: str) -> bool:
        """Return whether there is a condition of one of these *names*."""
        return any(getattr(self, name) is not None for name in names)

    @property
    def needs_payloads(self) -> bool:
        """Whether payloads must be read to know which entries match."""
        return self.has("task", "task_part", "queue", "stamp", "text")

    @property
    def needs_entries(self) -> bool:
        """Whether entries must be read to know which match; else their due times tell."""
        return self.needs_payloads or self.id_prefix is not None

    def window(self, now: Callable[[], datetime]) -> tuple[datetime | None, datetime | None]:
        """Return *due_before* and *due_after* as times; *now* is called only for spans."""
        before, after = (
            now() + value if isinstance(value, timedelta) else value for value in (self.due_before, self.due_after)
        )
        return before, after

    def match(self, found: Any) -> bool:
        """Return whether *found* meets all conditions but those on its time; it has the attributes that they name."""
        return all(meets(found, value) for name, meets in _MEETS.items() if (value := getattr(self, name)) is not None)


_MEETS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "id_prefix": lambda found, prefix: found.id.startswith(prefix),
    "reason": lambda found, part: part in found.reason,
    "worker": lambda found, name: found.worker == name,
    "exception": lambda found, name: name in (found.exception, found.exception.rpartition(".")[2]),
    "queue": lambda found, name: found.queue == name,
    "task": lambda found, name: found.task == name,
    "task_part": lambda found, part: part in found.task,
    "stamp": lambda found, stamps: _has_stamps(found.stamps, stamps),
    "text": lambda found, part: any(part in text for text in (found.args, found.kwargs, getattr(found, "message", ""))),
}
"""How each condition is met, those first that need no body."""


class TaskConditions(TypedDict, total=False):
    """Conditions as keyword arguments, for type checkers."""

    task: str | None
    task_part: str | None
    queue: str | None
    id_prefix: str | None
    stamp: Mapping[str, Any] | None
    text: str | None
    due_before: datetime | None
    due_after: datetime | None


def _has_stamps(stamps: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return all(_texts(stamps.get(name)) & _texts(values) for name, values in expected.items())


def _texts(value: Any) -> set[str]:
    several = value if isinstance(value, list | tuple | set | frozenset) else [] if value is None else [value]
    return set(map(str, several))
