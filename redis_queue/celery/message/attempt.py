"""Attempt: which call of its task id a message belongs to, so that a retry replaces no other call of the same id."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis_queue.model import Item
from redis_queue.store.ids import is_id

ETA: Final = "redis_queue_eta"
"""Header with the original eta. Celery's own eta header is empty, or a worker would wait for the eta again."""

CALL: Final = "redis_queue_call"
"""Header with the name of the call: new for each publish with a delay, the same for its retries."""

SENT: Final = "redis_queue_sent"
"""Header with the time at which a producer sent or stored the message, in ms by its clock."""

FLOW: Final = "redis_queue_flow"
"""Header with the flow and the keys of the message, see :class:`redis_queue.celery.message.flow_header.FlowHeader`."""

UNIQUE: Final = "redis_queue_unique"
"""Header with the key of a unique task, see :class:`redis_queue.celery.message.unique_header.UniqueHeader`."""

OWN: Final = frozenset({ETA, CALL, SENT, FLOW, UNIQUE})
"""Headers that belong to one message; messages sent by its task must not inherit them."""

_BYTES: Final = 9
_NAME: Final = re.compile(r"[\w-]{12}", re.ASCII)

_LINEAGE: Final = ("id", "task", "origin", "root_id", "parent_id", "group", "group_index")


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
        """Tell whether an entry with *payload* holds an attempt of the same call: a later one replaces it."""
        return bool(self.mark) and isinstance(payload, bytes) and self.mark.encode() in payload

    def waits_in(self, item: Item | None) -> bool:
        """Tell whether *item* is a waiting attempt of the same call."""
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


def retry_id(task_id: str) -> str:
    """Return the id for the entry of a retry while another call waits under *task_id* itself."""
    return sibling_id(task_id, "retry")


def sibling_id(task_id: str, name: str) -> str:
    """Return an id for another entry of the same task."""
    found = f"{task_id}~{name}"
    return found if is_id(found) else f"{hashlib.sha256(task_id.encode(errors='replace')).hexdigest()}~{name}"


def counted_id(task_id: str, headers: Mapping[str, Any]) -> str:
    """Return the id under which starts of the message with *headers* are counted; a newer call starts from zero."""
    name = call_in(headers)
    return task_id if name is None else sibling_id(task_id, name)


def without_copied_headers(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the *options* of a send without the headers that Celery copied from the message of the current task."""
    headers = options.get("headers")
    if not headers or OWN.isdisjoint(headers):
        return options
    return {**options, "headers": {name: value for name, value in headers.items() if name not in OWN}}


def is_redelivered(delivery_info: Any) -> bool:
    """Tell whether the broker marks the message as redelivered."""
    return bool((delivery_info or {}).get("redelivered"))


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode()
