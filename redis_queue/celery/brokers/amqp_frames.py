"""The frames in which a message goes to RabbitMQ, put together from cached parts.

They are the bytes that py-amqp sends for a mandatory message. Of about twenty headers of a task, all but five are the
same in every message, and serialising them again takes most of the time of a publish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from struct import Struct, pack
from typing import Any, Final

import amqp
from amqp.exceptions import FrameSyntaxError
from amqp.serialization import dumps

from redis_queue.celery.message.task_entry import restore_types
from redis_queue.errors import InvalidValueError

FRAME_OVERHEAD: Final = 20
"""Bytes of a header frame without its properties: frame header and end, class, weight and length of the body."""

_METHOD, _HEADER, _BODY = 1, 2, 3
"""Types of frames."""

_BASIC, _PUBLISH = 60, 40
"""Class and method."""

_MANDATORY: Final = b"\x01"
_AROUND: Final = 8
"""Bytes of any frame around its contents."""

_LENGTH: Final = 4
"""Bytes of the length field of a table."""

_SHORT: Final = 255
"""Most bytes of a short string: a property, an exchange, a routing key, the name of a header."""

_PLAIN: Final = (int, bool, type(None))
_NO_LIMITS: Final = [None, None]
"""Header value of nearly all tasks: neither a soft nor a hard time limit."""


class TooLargeError(InvalidValueError):
    """A part of a message is larger than RabbitMQ accepts."""


def frames(
    channel: int, frame_max: int, *, exchange: str, routing_key: str, properties: Mapping[str, Any], body: bytes
) -> bytes:
    """Return the frames of a message on *channel*; *properties* are named as by py-amqp.

    *frame_max* is the largest frame that the connection allows. Raises TooLargeError if the properties do not fit into
    one: RabbitMQ would close the connection, which looks like a broker that is away. Raises what
    :func:`serialize_properties` raises.
    """
    head = serialize_properties(properties)
    if len(head) > frame_max - FRAME_OVERHEAD:
        raise TooLargeError(f"headers of {len(head):,} bytes: must be <= {frame_max:,}, a frame of the broker")
    size, most = len(body), frame_max - _AROUND
    found = [
        _publish(channel, exchange, routing_key),
        _frame(_HEADER, channel, pack(">HHQ", _BASIC, 0, size) + head),
    ]
    found += [_frame(_BODY, channel, body[start : start + most]) for start in range(0, size, most)]
    return b"".join(found)


def serialize_properties(properties: Mapping[str, Any]) -> bytes:
    """Return the bytes of *properties*, as :class:`amqp.Message` serialises them.

    Headers are plain JSON, in which values of other types have the form that kombu gives them.
    Raises InvalidValueError for a header of a type that AMQP lacks, TooLargeError, or struct.error for a number out of
    its range.
    """
    flags, parts = 0, []
    try:
        for name, bit, write in _WRITERS:
            value = properties.get(name)
            if value is not None:
                flags |= bit
                parts.append(write(value))
    except FrameSyntaxError as error:
        # py-amqp counts it among the errors of a lost connection.
        raise InvalidValueError(str(error)) from None
    return pack(">H", flags) + b"".join(parts)


@lru_cache(maxsize=2048)
def _publish(channel: int, exchange: str, routing_key: str) -> bytes:
    method = pack(">HHH", _BASIC, _PUBLISH, 0)
    return _frame(_METHOD, channel, method + _short(exchange) + _short(routing_key) + _MANDATORY)


def _frame(kind: int, channel: int, contents: bytes) -> bytes:
    return pack(">BHI", kind, channel, len(contents)) + contents + b"\xce"


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
    return _serialised(name, restore_types(value))


@lru_cache(maxsize=2048)
def _name(name: str) -> bytes:
    return _short(name)


def _short(text: Any) -> bytes:
    raw: bytes = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text or b""
    if len(raw) > _SHORT:
        raise TooLargeError(f"{raw[:40].decode(errors='replace')!r}…, {len(raw):,} bytes: must be <= {_SHORT}")
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
