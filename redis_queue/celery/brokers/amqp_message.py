"""An AMQP message whose headers are written from parts that other messages had as well.

Of some twenty headers of a task all but five are the same in message after message, and to write them takes most of the
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
"""Bytes of the length in front of a table."""

_PLAIN: Final = (int, bool, type(None))
_NO_LIMITS: Final = [None, None]
"""The time limits of nearly all tasks."""


class TaskMessage(amqp.Message):  # type: ignore[misc]
    """Serialises as :class:`amqp.Message` does, byte for byte."""

    def _serialize_properties(self) -> bytes:
        flags, parts = 0, []
        for name, bit, write in _WRITERS:
            value = self.properties.get(name)
            if value is not None:
                flags |= bit
                parts.append(write(value))
        return pack(">H", flags) + b"".join(parts)


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
        return _short(name) + pack(">cI", b"S", len(text)) + text
    if kind in _PLAIN:
        return _kept(name, kind, value)
    if value == _NO_LIMITS or value in ({}, []):
        return _kept(name, kind, tuple(value))
    return _written(name, value)


def _short(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return pack("B", len(raw)) + raw


@lru_cache(maxsize=2048)
def _kept(name: str, kind: Any, value: Any) -> bytes:
    # The type is part of the key: True and 1 are equal, and written otherwise.
    return _written(name, value if kind in _PLAIN else kind(value))


def _written(name: str, value: Any) -> bytes:
    return bytes(dumps("F", [{name: value}])[_LENGTH:])


_HIGHEST: Final = 15
_WRITERS: Final = [
    (name, 1 << (_HIGHEST - number), _writer(kind)) for number, (name, kind) in enumerate(amqp.Message.PROPERTIES)
]
"""Name, flag and writer of each property, in their order on the wire."""
