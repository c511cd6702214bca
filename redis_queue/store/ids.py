"""Ids of messages and entries: make new ones, check those of callers, convert those of Redis."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import threading
import time
from collections.abc import Iterable
from typing import Final

from redis_queue.errors import InvalidNameError, quoted
from redis_queue.store.chunks import check_many

MAX_ID: Final = 255

RETRY: Final = "~retry"
"""End of the id of a retry that waits beside another call of its task."""


def check_id(value: str, *, name: str = "id") -> str:
    """Return *value* if it is a valid id of a message or entry. Raises InvalidNameError."""
    if not is_id(value):
        raise InvalidNameError(f"{name}={quoted(value)}: must be 1 to {MAX_ID} printable characters")
    return value


def check_ids(values: Iterable[str]) -> list[str]:
    """Return *values* if they are a list of valid ids. Raises InvalidNameError, and InvalidValueError for a text."""
    return [check_id(value) for value in check_many(values, name="ids")]


def is_id(value: object) -> bool:
    """Return whether *value* is a valid id of a message or entry."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID and value.isprintable()


def id_text(raw: bytes) -> str:
    """Return an id as text; :func:`id_bytes` returns the same bytes again, whatever they were."""
    return raw.decode(errors="surrogateescape")


def id_bytes(text: str) -> bytes:
    """Return the bytes of an id."""
    return text.encode(errors="surrogateescape")


def retry_id(task_id: str) -> str:
    """Return the id for the entry of a retry while another call waits under *task_id* itself."""
    return sibling_id(task_id, RETRY[1:])


def sibling_id(task_id: str, name: str) -> str:
    """Return an id for another entry of the same task."""
    found = f"{task_id}~{name}"
    return found if is_id(found) else f"{hashlib.sha256(task_id.encode(errors='replace')).hexdigest()}~{name}"


def readable(text: str) -> str:
    """Return *text* of an untrusted writer with surrogates replaced that stand for no byte: no page can show them."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


# The others are those of id_text().
_SURROGATES: Final = re.compile("[\ud800-\udc7f\udd00-\udfff]")


class _Milliseconds:
    """This host's clock, but never the same or an earlier millisecond twice: ids of one process keep their order."""

    def __init__(self) -> None:
        self._last = 0
        self.unlock()

    def unlock(self) -> None:
        """Replace the lock: in a forked child, nobody releases one that another thread held."""
        self._lock = threading.Lock()

    def next(self) -> int:
        """Return a millisecond later than all before."""
        with self._lock:
            self._last = max(self._last + 1, time.time_ns() // 1_000_000)
            return self._last


_clock: Final = _Milliseconds()
os.register_at_fork(after_in_child=_clock.unlock)


def new_ids(count: int) -> list[str]:
    """Return up to 65,536 new ids of 24 characters that sort in the order they were made, by this host's clock.

    An id holds the time in ms, the position in this call, and 56 random bits. So entries due in the same millisecond
    keep their order.
    """
    if not count:
        return []
    head = _clock.next().to_bytes(6, "big")
    tail = os.urandom(7)
    raw = b"".join(head + number.to_bytes(2, "big") + tail for number in range(count))
    text = base64.b32hexencode(raw).decode()
    return [text[start : start + 24] for start in range(0, 24 * count, 24)]
