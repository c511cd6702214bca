"""An AMQP message that is serialised from cached parts.

Of about twenty headers of a task, all but five are the same in every message, and serialising them takes most of the
time of a publish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from struct import Struct, pack
from typing import Any, Final

import amqp
from amqp.serialization import dumps

_LENGTH: Final = 4
"""Bytes of the length field of a table."""

_PLAIN: Final = (int, bool, type(None))
_NO_LIMITS: Final = [None, None]
"""Header value of nearly all tasks: neither a soft nor a hard time limit."""


FRAME_OVERHEAD: Final = 20
"""Bytes of a header frame without its properties: frame header and end, class, weight and length of the body."""


class TooLargeError(ValueError):
    """The headers do not fit into one frame; nothing was written."""


class TaskMessage(amqp.Message):  # type: ignore[misc]
    """Serialises as :class:`amqp.Message` does, byte for byte.

    *frame_max* is the largest frame that the connection allows. RabbitMQ closes a connection that sends a larger one,
    which looks like a broker that is away.
    """

    frame_max = 0

    def _serialize_properties(self) -> bytes:
        flags, parts = 0, []
        for name, bit, write in _WRITERS:
            value = self.properties.get(name)
            if value is not None:
                flags |= bit
                parts.append(write(value))
        found = pack(">H", flags) + b"".join(parts)
        if self.frame_max and len(found) > self.frame_max - FRAME_OVERHEAD:
            raise TooLargeError(
                f"headers of {len(found):,} bytes: must be <= {self.frame_max:,}, a frame of the broker"
            )
        return found


def _table(headers: Mapping[str, Any]) -> bytes:
    table = b"".join([_item(name, value) for name, value in headers.items()])
    return pack(">I", len(table)) + table


def _writer(kind: str) -> Callable[[Any], bytes]:
    if kind == "F":
        return _table
    if kind == "s":
        return _short
    return Struct("B").pack if kind == "o" else lambda value: bytes(dumps(kind, [value]))


def _item(name: str, value: Any) -> bytes:
    kind: Any = type(value)
    if kind is str:
        text: bytes = value.encode("utf-8", "surrogatepass")
        return _name(name) + pack(">cI", b"S", len(text)) + text
    if kind in _PLAIN:
        return _cached(name, kind, value)
    if value == _NO_LIMITS or value in ({}, []):
        return _cached(name, kind, tuple(value))
    return _serialised(name, value)


@lru_cache(maxsize=2048)
def _name(name: str) -> bytes:
    return _short(name)


def _short(text: Any) -> bytes:
    raw: bytes = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text or b""
    return pack("B", len(raw)) + raw


@lru_cache(maxsize=2048)
def _cached(name: str, kind: Any, value: Any) -> bytes:
    # The type is part of the cache key: True and 1 are equal, but are serialised differently.
    return _serialised(name, value if kind in _PLAIN else kind(value))


def _serialised(name: str, value: Any) -> bytes:
    return bytes(dumps("F", [{name: value}])[_LENGTH:])


_HIGHEST: Final = 15
_WRITERS: Final = [
    (name, 1 << (_HIGHEST - number), _writer(kind)) for number, (name, kind) in enumerate(amqp.Message.PROPERTIES)
]
"""Name, flag and writer of each property, in their order on the wire."""
