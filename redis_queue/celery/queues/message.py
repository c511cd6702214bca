"""WaitingMessage: a message that waits in a queue of a Redis broker, as its list holds it and in readable form."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from redis_queue.basics.times import END_OF_CALENDAR_MS, from_ms, iso_time
from redis_queue.celery.message.body import retries_in
from redis_queue.celery.message.envelope import MAX_MESSAGE_NAME
from redis_queue.celery.message.headers import ETA, SENT, message_in
from redis_queue.celery.message.task_entry import MAX_REPR
from redis_queue.errors import InvalidValueError
from redis_queue.store.codec import MAX_INTEGER, read_document
from redis_queue.store.ids import readable

_DIGEST: Final = 32
"""Characters of a digest."""


@dataclass(frozen=True, slots=True)
class Element:
    """A message of *size* bytes as a list holds it; *older* messages of the list are taken before it.

    *head* is the whole message if *tail* is empty. Otherwise they are its beginning and its end. One with a *group*
    waits for a place in a flow.
    """

    step: int
    older: int
    size: int
    head: bytes
    tail: bytes = b""
    group: bytes = b""

    @property
    def reference(self) -> str:
        """Text that identifies the message in its queue: the step of its priority, and a digest of its contents."""
        digest = hashlib.sha256(b"%d %d:%b%b" % (self.size, len(self.head), self.head, self.tail)).hexdigest()
        return f"{self.step}.{digest[:_DIGEST]}"


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message in readable form. *task* and *id* are "" for messages of other programs.

    *sent_at* and *due_at* are None if the message does not tell; *sent_at* is by the clock of its producer. *args* and
    *kwargs* are the shortened texts that the message carries. Nothing is unpickled.
    """

    element: Element
    id: str = ""
    task: str = ""
    args: str = ""
    kwargs: str = ""
    retries: int = 0
    sent_at: datetime | None = None
    due_at: datetime | None = None
    stamps: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, element: Element) -> WaitingMessage:
        """Return *element* as a message; unreadable ones have only their element."""
        call = _call_in_tail(element.tail) if element.tail else _call(_document(message_in(element.head)))
        return cls(
            element,
            id=_text(call.get("id"), MAX_MESSAGE_NAME),
            task=_text(call.get("task"), MAX_MESSAGE_NAME),
            args=_text(call.get("argsrepr"), MAX_REPR),
            kwargs=_text(call.get("kwargsrepr"), MAX_REPR),
            retries=retries_in(call),
            sent_at=_time(call.get(SENT)),
            due_at=iso_time(call.get(ETA)),
            stamps=found if isinstance(found := call.get("stamps"), Mapping) else {},
        )

    @property
    def waits_for(self) -> str:
        """For what it waits: "a place" in its flows, or "a worker"."""
        return "a place" if self.element.group else "a worker"

    @property
    def queue(self) -> str:
        """The queue in which it waits for a place; "" if it waits for a worker."""
        return readable(queue_of(self.element.group).decode(errors="replace"))

    @property
    def since(self) -> datetime | None:
        """When it was sent, or was due if it was delayed."""
        return max((at for at in (self.sent_at, self.due_at) if at is not None), default=None)


def queue_of(group: bytes) -> bytes:
    """Return the name of the queue of *group*; b"" without a group."""
    return b"".join(group.split(b"\0")[1:2])


def with_route(data: bytes, queue: str) -> bytes:
    """Return the message *data* with a route that leads to *queue*: kombu returns a message by its route.

    What precedes the message of a unique task stays. Raises InvalidValueError for a message of another program.
    """
    message = message_in(data)
    found = _document(message)
    properties = found.get("properties")
    if "body" not in found or not isinstance(properties, Mapping):
        raise InvalidValueError("not a message of Celery")
    moved = {**properties, "delivery_info": {"exchange": "", "routing_key": queue}}
    return data[: len(data) - len(message)] + json.dumps({**found, "properties": moved}).encode()


def _document(data: bytes) -> Mapping[str, Any]:
    try:
        found = read_document(data)
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _call(document: Mapping[str, Any]) -> Mapping[str, Any]:
    headers = document.get("headers")
    return headers if isinstance(headers, Mapping) else {}


_IN_TAIL: Final = re.compile(
    rb'"(id|task|argsrepr|kwargsrepr|retries|redis_queue_sent|redis_queue_eta)": ?'
    rb'("(?:[^"\\]|\\.){0,4000}"|\d{1,15})[,}]'
)


def _call_in_tail(tail: bytes) -> dict[str, Any]:
    """Return the headers of a large message: they stand after its body."""
    found: dict[str, Any] = {}
    for name, value in _IN_TAIL.findall(tail):
        try:
            found.setdefault(name.decode(), json.loads(value))
        except ValueError:
            continue
    return found


def _text(value: Any, most: int) -> str:
    return readable(value[:most]) if isinstance(value, str) else ""


def _time(value: Any) -> datetime | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= min(END_OF_CALENDAR_MS, MAX_INTEGER):
        return None
    return from_ms(value)
