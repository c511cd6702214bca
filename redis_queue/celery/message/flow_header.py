"""FlowHeader: which flow and which keys a message belongs to, in headers that go with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from redis_queue.basics.key_template import check_key
from redis_queue.celery.message.attempt import FLOW, UNIQUE
from redis_queue.celery.message.unique_header import UniqueHeader
from redis_queue.errors import InvalidValueError
from redis_queue.flow.flows import OF_QUEUE
from redis_queue.store.keys import MAX_NAME


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
