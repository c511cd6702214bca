"""UniqueHeader: which key the message of a unique task owns, in a header that goes with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis_queue.basics.times import MAX_DELAY_MS
from redis_queue.celery.message.attempt import UNIQUE
from redis_queue.errors import InvalidValueError
from redis_queue.unique.owners import field_of
from redis_queue.unique.rules import END, LONGEST, START, TIME

_TOKEN: Final = re.compile(r"[0-9a-f]{1,32}", re.ASCII)
_PARTS: Final = 5
_ELEMENT: Final = re.compile(rb"\x01[A-Za-z] [0-9a-f]{1,32} \d{1,15} (\d{1,6}) (\d{1,6}) ")


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
        if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int) or not 0 < ttl_ms <= LONGEST + MAX_DELAY_MS:
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
