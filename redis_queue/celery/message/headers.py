"""Our headers in a message: its call and attempt, its flow and unique key, and the trace of its schedule."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from redis_queue.admission.flows import OF_QUEUE
from redis_queue.admission.owners import field_of
from redis_queue.admission.rules import END, MAX_TTL_MS, START, TIME
from redis_queue.basics.key_template import check_key
from redis_queue.basics.times import MAX_DELAY_MS
from redis_queue.errors import InvalidValueError
from redis_queue.model import Item
from redis_queue.store.ids import retry_id, sibling_id
from redis_queue.store.keys import MAX_NAME

ETA: Final = "redis_queue_eta"
"""Header with the original eta. Celery's own eta header is empty, or a worker would wait for the eta again."""

CALL: Final = "redis_queue_call"
"""Header with the name of the call: new for each publish with a delay, the same for its retries."""

SENT: Final = "redis_queue_sent"
"""Header with the time at which a producer sent or stored the message, in ms by its clock."""

FLOW: Final = "redis_queue_flow"
"""Header with the flow and the keys of the message, see :class:`FlowHeader`."""

UNIQUE: Final = "redis_queue_unique"
"""Header with the key of a unique task, see :class:`UniqueHeader`."""

SCHEDULE: Final = "schedule"
"""Header with the name of the schedule that sent the message. Tasks read it, so it has a plain name."""

SCHEDULED_FOR: Final = "scheduled_for"
"""Header with the due time of its run as ISO 8601 in UTC."""

OWN: Final = frozenset({ETA, CALL, SENT, FLOW, UNIQUE})
"""Headers that belong to one message; messages sent by its task must not inherit them."""

_BYTES: Final = 9
_NAME: Final = re.compile(r"[\w-]{12}", re.ASCII)

_LINEAGE: Final = ("id", "task", "origin", "root_id", "parent_id", "group", "group_index")

_TOKEN: Final = re.compile(r"[0-9a-f]{1,32}", re.ASCII)
_PARTS: Final = 5
_ELEMENT: Final = re.compile(rb"\x01[A-Za-z] [0-9a-f]{1,32} \d{1,15} (\d{1,6}) (\d{1,6}) ")

DUE_AT: Final = "redis_queue_due_at"
"""Header with the due time, for the worker. Only messages whose schedule is sampled have it."""

PARENT, STATE = "traceparent", "tracestate"
CARRIED: Final = (PARENT, STATE, DUE_AT)
"""Headers that belong to one schedule; the next one must not inherit them."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of the call *call*. *first*: no attempt of this call can have been stored before."""

    call: str
    first: bool

    @classmethod
    def of(cls, headers: Mapping[str, Any], delivery_info: Any) -> Attempt:
        """Return the attempt of a message that a worker received, by its *headers* and *delivery_info*.

        A message that was never stored has no call name. Then the name is derived from its contents. Another message
        with the same contents gets the same name, but only a redelivered one can have stored an attempt before.
        """
        name = call_in(headers)
        if name is not None:
            return cls(name, first=False)
        return cls(call_name(*(headers.get(item) for item in _LINEAGE)), first=not is_redelivered(delivery_info))

    @property
    def mark(self) -> str:
        """Text that identifies a stored message as one of this call; "" if there cannot be any."""
        return "" if self.first else self.call

    def is_in(self, payload: Any) -> bool:
        """Return whether an entry with *payload* holds an attempt of the same call: a later one replaces it."""
        return bool(self.mark) and isinstance(payload, bytes) and self.mark.encode() in payload

    def waits_in(self, item: Item | None) -> bool:
        """Return whether *item* is a waiting attempt of the same call."""
        return item is not None and item.state == "delayed" and self.is_in(item.body)

    def ids(self, task_id: str) -> Iterator[str]:
        """Yield the ids of entries that may hold this attempt, best first."""
        yield task_id
        yield retry_id(task_id)
        yield sibling_id(task_id, new_call() if self.first else self.call)


def sent_now() -> int:
    """Return the value of :data:`SENT` for a message that is sent or stored now."""
    return time.time_ns() // 1_000_000


def new_call() -> str:
    """Return a name that no other call has."""
    return _text(os.urandom(_BYTES))


def call_name(*facts: object) -> str:
    """Return a name derived from *facts*: the same facts, the same name."""
    return _text(hashlib.sha256(repr(facts).encode(errors="replace")).digest()[:_BYTES])


def call_in(headers: Mapping[str, Any]) -> str | None:
    """Return the name of the call in *headers*; None if it is missing or invalid."""
    found = headers.get(CALL)
    return found if isinstance(found, str) and _NAME.fullmatch(found) else None


def counted_id(task_id: str, headers: Mapping[str, Any]) -> str:
    """Return the id under which starts of the message with *headers* are counted; a newer call starts from zero."""
    name = call_in(headers)
    return task_id if name is None else sibling_id(task_id, name)


def without_copied_headers(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the *options* of a send without the headers that Celery copied from the message of the current task."""
    headers = options.get("headers") or {}
    copied = OWN.union(CARRIED) if DUE_AT in headers else OWN
    if copied.isdisjoint(headers):
        return options
    return {**options, "headers": {name: value for name, value in headers.items() if name not in copied}}


def is_redelivered(delivery_info: Any) -> bool:
    """Return whether the broker marks the message as redelivered."""
    return bool((delivery_info or {}).get("redelivered"))


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode()


@dataclass(frozen=True, slots=True)
class UniqueHeader:
    """The *key* of *task* that the message with *token* owns: until "s", "e" or "t", and for *ttl_ms* at most."""

    until: str
    token: str
    ttl_ms: int
    task: str
    key: str

    @classmethod
    def of(cls, headers: Any) -> UniqueHeader | None:
        """Return what *headers* of a message say; None if they say nothing, or nothing valid."""
        found = headers.get(UNIQUE) if isinstance(headers, Mapping) else None
        if not isinstance(found, list) or len(found) != _PARTS:
            return None
        until, token, ttl_ms, task, key = found
        if until not in (START, END, TIME) or not isinstance(token, str) or not _TOKEN.fullmatch(token):
            return None
        if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int) or not 0 < ttl_ms <= MAX_TTL_MS + MAX_DELAY_MS:
            return None
        if not isinstance(key, str):
            return None
        try:
            field_of(task, key)
        except InvalidValueError:
            return None
        return cls(until, token, ttl_ms, task, key)

    @property
    def value(self) -> list[str | int]:
        """The value of the header."""
        return [self.until, self.token, self.ttl_ms, self.task, self.key]

    @property
    def field(self) -> str:
        """The name of its key in Redis."""
        return field_of(self.task, self.key)

    def element(self, task_id: str, message: bytes, *, again: bool = False) -> bytes:
        """Return *message* as the list of its group has it: see lua/includes/unique_message.lua.

        *again*: another broker has delivered it, which may do so again.
        """
        until = self.until.upper() if again else self.until
        field, id_ = self.field.encode(), task_id.encode(errors="surrogatepass")
        start = f"\x01{until} {self.token} {self.ttl_ms} {len(field)} {len(id_)} "
        return start.encode() + field + id_ + message


def message_in(element: bytes) -> bytes:
    """Return the message in an *element* of a group; *element* itself if its task is not unique."""
    found = _ELEMENT.match(element)
    return element[found.end() + int(found[1]) + int(found[2]) :] if found else element


@dataclass(frozen=True, slots=True)
class FlowHeader:
    """The flow of the task, "" for none, its key, and the key of the flow of the queue; "" for no key.

    *unique*: the key that the message of a unique task owns.
    """

    task: str = ""
    of_task: str = ""
    of_queue: str = ""
    unique: UniqueHeader | None = None

    @classmethod
    def of(cls, headers: Any) -> FlowHeader | None:
        """Return what *headers* of a message say; None if they say nothing, or nothing valid."""
        flow, unique = cls._flow_of(headers), UniqueHeader.of(headers)
        return flow if unique is None else replace(flow or cls(), unique=unique)

    @classmethod
    def _flow_of(cls, headers: Any) -> FlowHeader | None:
        found = headers.get(FLOW) if isinstance(headers, Mapping) else None
        if not isinstance(found, list) or len(found) != 3 or not all(isinstance(part, str) for part in found):  # noqa: PLR2004
            return None
        task, *keys = found
        try:
            for key in filter(None, keys):
                check_key(key)
        except InvalidValueError:
            return None
        is_task = len(task) <= MAX_NAME and not task.startswith(OF_QUEUE) and (not task or task.isprintable())
        return cls(*found) if is_task else None

    @property
    def headers(self) -> dict[str, Any]:
        """The headers that say it."""
        found: dict[str, Any] = {FLOW: [self.task, self.of_task, self.of_queue]}
        return found if self.unique is None else {**found, UNIQUE: self.unique.value}

    def element(self, task_id: str, message: bytes, *, again: bool = False) -> bytes:
        """Return *message* as the list of its group has it. *again*: another broker may deliver it again."""
        return message if self.unique is None else self.unique.element(task_id, message, again=again)
