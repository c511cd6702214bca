"""Convert bodies to bytes and back: serializers and the format of records.

A record is ``v1 <put_at ms> <kind> <headers length> <body length>\\n<headers><body>``. With a destination it has a
third length: ``v1 <put_at ms> <kind> <headers length> <body length> <destination
length>\\n<headers><destination><body>``. The scripts add version and time, and compare the lengths in a claim, so they
find truncated records. They never read headers or bodies. *kind* is ``bytes`` for bodies that were bytes, otherwise the
name of the serializer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn, Protocol, runtime_checkable

from redis_queue.basics.times import END_OF_CALENDAR_MS
from redis_queue.errors import BodyError, ConfigurationError

BYTES: Final = "bytes"

_KIND = re.compile(r"[a-z0-9][a-z0-9_.+-]{0,30}")
_FRAME = re.compile(rb"v1 (\d{1,18}) (\S+) (\d{1,10}) (\d{1,10})(?: (\d{1,10}))?\n")


class UnreadableError(ValueError):
    """Unreadable record; the caller moves it to quarantine."""


@runtime_checkable
class Serializer(Protocol):
    """Converts bodies to bytes and back. ``loads`` must be safe with hostile bytes: never use pickle."""

    name: str

    def dumps(self, body: Any, /) -> bytes:
        """Return *body* as bytes. Any exception becomes a BodyError."""

    def loads(self, data: bytes, /) -> Any:
        """Return the body of *data*. Any exception sends the record to quarantine."""


MAX_DIGITS: Final = 4300
"""Maximum characters of an integer, as in newer versions of Python: the time to read one is quadratic."""

MAX_INTEGER: Final = 2**63 - 1

MAX_DEPTH: Final = 200
"""Maximum levels of a document: code that walks it recurses once per level."""


def _refuse_constant(value: str) -> NoReturn:
    raise ValueError(f"{value} is not JSON")


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"integer of {len(text)} characters: must have at most {MAX_DIGITS}")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_constant(text)


_DOCUMENT: Final = json.JSONDecoder(parse_int=_integer)
_SHORT_DOCUMENT: Final = json.JSONDecoder()


def read_document(text: str | bytes) -> Any:
    """Return the plain values of a JSON document from an untrusted writer.

    Raises ValueError for anything but JSON, for integers of more than MAX_DIGITS characters, and for more than
    MAX_DEPTH levels.
    """
    text = text.decode() if isinstance(text, bytes) else text
    try:
        # No integer is longer than its document: json reads those of short documents itself, much faster.
        found = (_DOCUMENT if len(text) > MAX_DIGITS else _SHORT_DOCUMENT).decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _check_levels(text, found)
    return found


def small_integer(value: Any) -> int:
    """Return *value*, a part of a document, if it is an integer of up to 63 bits. Raises TypeError."""
    if isinstance(value, bool) or not isinstance(value, int) or not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise TypeError(f"expected an integer of up to 63 bits, got {type(value).__name__}")
    return value


def _check_levels(text: str, value: Any) -> None:
    # Counting brackets is cheap, and few documents have so many.
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return
        held = (
            item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list | tuple)
        )
        level = [inner for several in held for inner in several]
    raise ValueError("nested too deeply")


class JsonSerializer:
    """Strict JSON in UTF-8: refuses NaN and infinity in both directions."""

    name = "json"

    def __init__(self) -> None:
        self._encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode
        self._decode = json.JSONDecoder(parse_int=_integer, parse_float=_finite, parse_constant=_refuse_constant).decode

    def dumps(self, body: Any, /) -> bytes:
        """Return *body* as compact JSON. Raises ValueError for more than MAX_DEPTH levels, which cannot be read."""
        text = self._encode(body)
        _check_levels(text, body)
        return text.encode()

    def loads(self, data: bytes, /) -> Any:
        """Return the body of *data*. Raises ValueError for more than MAX_DEPTH levels."""
        text = data.decode()
        found = self._decode(text)
        _check_levels(text, found)
        return found


JSON: Final = JsonSerializer()


class Record(NamedTuple):
    """Contents of a record: time of the put (ms), headers, body, and the destination of a move."""

    put_at: int
    headers: Mapping[str, Any]
    body: Any
    destination: str | None = None


class Codec:
    """Write and read records with one serializer and one size limit. Raises ConfigurationError if it is invalid."""

    def __init__(self, serializer: Serializer, max_body: int) -> None:
        if not isinstance(serializer, Serializer) or not _KIND.fullmatch(serializer.name):
            raise ConfigurationError(f"serializer={serializer!r}: must have a short lower-case name, dumps and loads")
        if serializer.name == BYTES:
            raise ConfigurationError(
                "serializer name='bytes': must be another name; this one marks bodies that are bytes"
            )
        self._serializer = serializer
        self._max_body = max_body
        self._own = serializer.name.encode()

    def encode(self, body: Any, headers: Mapping[str, Any] | None = None, destination: str | None = None) -> bytes:
        """Return the record of *body* without version and time, which the script adds. Raises BodyError."""
        if isinstance(body, bytes | bytearray | memoryview):
            kind, data = BYTES, bytes(body)
        else:
            kind, data = self._serializer.name, self._dumps(body)
        if len(data) > self._max_body:
            raise BodyError(f"body of {len(data)} bytes: must be at most max_body={self._max_body}; store it elsewhere")
        head = _dump_headers(headers) if headers else b""
        if destination is None:
            return b"%b %d %d\n%b%b" % (kind.encode(), len(head), len(data), head, data)
        target = destination.encode()
        return b"%b %d %d %d\n%b%b%b" % (kind.encode(), len(head), len(data), len(target), head, target, data)

    def decode(self, record: bytes) -> Record:
        """Return the contents of *record*. Raises UnreadableError with the reason."""
        frame = _FRAME.match(record)
        if frame is None:
            raise UnreadableError("not a record")
        put_at, kind, *lengths = frame.groups(b"0")
        at, split, size, middle = int(put_at), int(lengths[0]), int(lengths[1]), int(lengths[0]) + int(lengths[2])
        rest = record[frame.end() :]
        if middle + size != len(rest):
            raise UnreadableError("the length is wrong")
        if not 0 <= at <= END_OF_CALENDAR_MS:
            raise UnreadableError(f"put_at={at}: must be a time in the calendar (ms)")
        headers = _load_headers(rest[:split]) if split else {}
        target = rest[split:middle].decode(errors="replace") if frame[5] else None
        return Record(at, headers, self._loads(kind, rest[middle:]), target)

    def _dumps(self, body: Any) -> bytes:
        try:
            return self._serializer.dumps(body)
        except (RecursionError, Exception) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise BodyError(f"body of type {type(body).__name__} is not {self._serializer.name}: {reason}") from error

    def _loads(self, kind: bytes, data: bytes) -> Any:
        if kind == b"bytes":
            return data
        if kind == self._own:
            serializer = self._serializer
        elif kind == b"json":
            serializer = JSON
        else:
            raise UnreadableError(f"written by serializer {kind.decode(errors='replace')!r}")
        try:
            return serializer.loads(data)
        except (RecursionError, Exception) as error:
            raise UnreadableError(f"body is not {serializer.name}: {type(error).__name__}") from error


def _dump_headers(headers: Mapping[str, Any]) -> bytes:
    if not isinstance(headers, Mapping) or not all(isinstance(name, str) for name in headers):
        raise BodyError(f"headers={headers!r}: must be a mapping with string names")
    try:
        data = JSON.dumps(dict(headers))
    except (TypeError, ValueError, RecursionError) as error:
        raise BodyError(f"headers: must be JSON: {error}") from error
    if len(data) > MAX_HEADERS:
        raise BodyError(f"headers of {len(data)} bytes: must be at most {MAX_HEADERS}")
    return data


MAX_HEADERS: Final = 32 * 1024


def _load_headers(data: bytes) -> Mapping[str, Any]:
    try:
        headers = JSON.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableError("headers are not JSON") from error
    if not isinstance(headers, dict):
        raise UnreadableError("headers are not a JSON object")
    return headers
