"""Envelope: a Celery message between its capture and its publish, and the compact bytes that it is stored as.

They hold the element that kombu's Redis transport keeps in its lists, with single bytes in place of phrases that nearly
all messages contain. JSON is written in ASCII, so every byte above 0x7f is free for that. A script in Redis puts the
phrases back with one substitution.
"""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

from kombu.compression import compress
from kombu.messaging import Producer
from kombu.utils.json import JSONEncoder

from redis_queue.basics.times import END_OF_CALENDAR_MS
from redis_queue.celery.message.headers import CALL, SENT, sent_now
from redis_queue.errors import InvalidValueError
from redis_queue.store.codec import MAX_DIGITS, read_document, small_integer
from redis_queue.store.ids import MAX_ID

_PUBLISHED: Final = ("correlation_id", "reply_to", "delivery_mode", "priority", "message_id", "app_id")
"""Properties that a publisher sets."""

MAX_MESSAGE_NAME: Final = 1000
"""Maximum characters of a task name, id, queue or exchange."""

MAX_DECLARE: Final = 100
"""Maximum number of queues and exchanges that one message may declare."""

MAX_PRIORITY: Final = 2**31 - 1
"""Maximum absolute value of a priority. Brokers support fewer, and each treats the rest in its own way."""

_OF_THE_PUBLISH: Final = frozenset(inspect.signature(Producer.publish).parameters) - {"priority", "delivery_mode"}
"""Names that a property must not have: kombu would treat them as options of the publish."""

_ENCODER: Final = JSONEncoder(separators=(",", ":"))

VERSION: Final = b"\x01"
"""First byte of a packed message. A later form gets another one; JSON never begins with a control character."""

_ID: Final = "\x80"
TAG: Final = "\x81"
"""The byte that stands for the delivery tag."""

_FIRST: Final = 0x82

_PHRASES: Final = (
    r', {}, {\"callbacks\": null, \"errbacks\": null, \"chain\": null, \"chord\": null}]",'
    r'"content-encoding":"utf-8","content-type":"application/json","headers":{"lang":"py","task":"',
    r', {\"callbacks\": null, \"errbacks\": null, \"chain\": null, \"chord\": null}]",'
    r'"content-encoding":"utf-8","content-type":"application/json","headers":{"lang":"py","task":"',
    '","shadow":null,"eta":null,"expires":null,"group":null,"group_index":null,"retries":0,'
    '"timelimit":[null,null],"root_id":"',
    '","shadow":null,"eta":null,"expires":',
    '"group":null,"group_index":null,"retries":',
    '"timelimit":[null,null],"root_id":"',
    '","parent_id":null,"argsrepr":"',
    '","argsrepr":"',
    '","kwargsrepr":"{}","origin":"gen',
    '","kwargsrepr":"',
    '","origin":"gen',
    '","ignore_result":false,"replaced_task_nesting":0,"stamped_headers":null,"stamps":{},"redis_queue_eta":"',
    '","ignore_result":true,"replaced_task_nesting":0,"stamped_headers":null,"stamps":{},"redis_queue_eta":"',
    '","redis_queue_call":"',
    '"},"properties":{"correlation_id":"',
    '","ignore_result":',
    ',"replaced_task_nesting":0,"stamped_headers":',
    ',"stamps":{',
    '"properties":{"correlation_id":"',
    '","reply_to":"',
    '","delivery_mode":2,"delivery_info":{"exchange":"","routing_key":"celery"},"priority":0,"delivery_tag":"',
    '","delivery_mode":2,"delivery_info":{"exchange":"","routing_key":"',
    '","delivery_mode":2,"delivery_info":{"exchange":"',
    '","routing_key":"',
    '"},"priority":0,"delivery_tag":"',
    '"},"priority":',
    ',"delivery_tag":"',
    r"{\"callbacks\": null, \"errbacks\": null, \"chain\": null, \"chord\": null}",
    '"content-encoding":"utf-8","content-type":"application/json","headers":{',
    '"content-encoding":"binary","content-type":"application/x-python-serialize","headers":{',
    '"lang":"py","task":"',
    '"body_encoding":"base64"',
)
"""What bytes from 0x82 up stand for. An order or a text that changes needs another VERSION."""

PHRASES: Final[Sequence[bytes]] = tuple(phrase.encode("latin-1") for phrase in _PHRASES)
_CODES: Final = tuple((phrase, chr(_FIRST + number)) for number, phrase in enumerate(_PHRASES))
_BY_CODE: Final = {code: phrase for phrase, code in _CODES}
_PARTS: Final = {phrase: frozenset(part for part in _PHRASES if part in phrase) for phrase in _PHRASES}
"""The phrases that each phrase contains. They rarely occur a second time, so they are not searched for after it."""

_PACKED = re.compile("([\x82-\xff])")
_ESCAPED = re.compile(r"\\u00[2-7]")

MIN_ID: Final = 8
"""Longest id that is not replaced: one as short as this could occur anywhere in a message."""

MAX_IDS: Final = 100
MAX_PHRASES: Final = 10
"""Maximum number of times that the id, and each phrase, is replaced in a message: unpacking cannot grow it further."""

MAX_CODES: Final = 500
"""Maximum number of replacements in one message, all together; a script contains the same number."""

_ASCII: Final = bytes(range(128))

Due = tuple[float | None, datetime | None]
"""A delay in seconds by the Redis server's clock, or a time."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message as kombu would have sent it. *properties* hold priority, delivery mode, reply_to and the like."""

    body: bytes
    content_type: str
    content_encoding: str
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    exchange: str
    routing_key: str
    #: Queues to declare before a publish, as :func:`redis_queue.celery.message.producer.describe` returns them.
    declare: Sequence[Any] = field(default=())
    #: When its time to live ends, ms since the epoch; None means never.
    expires_at: int | None = None

    @property
    def id(self) -> str:
        """The task id."""
        return str(self.headers.get("id") or self.properties.get("correlation_id") or "")

    @property
    def task(self) -> str:
        """The name of the task; "" if it is in the body (protocol 1)."""
        return str(self.headers.get("task") or "")

    @property
    def priority(self) -> int:
        """The priority; 0 by default."""
        return priority_of(self.properties)

    @property
    def queue(self) -> str:
        """The Celery queue of the message; "" if only its exchange determines it."""
        declared = next((name for name in map(described_name, self.declare) if isinstance(name, str)), "")[
            :MAX_MESSAGE_NAME
        ]
        return declared or ("" if self.exchange else self.routing_key)

    def element(self, tag: str) -> str:
        """Return the element of a list of kombu's Redis transport, with *tag* as its delivery tag."""
        return _ENCODER.encode(self._element(tag))

    def pack(self, entry_id: str | None = None) -> bytes:
        """Return the compact form for the entry *entry_id*, by default one with the id of the task."""
        return pack(self.element(""), self.id if entry_id in (None, self.id) else "")

    @classmethod
    def of_element(cls, data: bytes) -> Envelope:
        """Return what :meth:`element` wrote. Raises InvalidValueError for anything else."""
        return cls._of_text(data, {})

    @classmethod
    def unpack(cls, data: bytes, entry_id: str, headers: Mapping[str, Any] | None = None) -> Envelope:
        """Return what :meth:`pack` stored in the entry *entry_id*, whose record has *headers*.

        Values of headers stay plain JSON, even if kombu would convert them to another type. Raises InvalidValueError
        for bytes that are not a packed message, UnknownVersionError for a format of a later version.
        """
        return cls._of_text(expand(data, entry_id), headers or {})

    @classmethod
    def _of_text(cls, text: str | bytes, headers: Mapping[str, Any]) -> Envelope:
        try:
            return cls._from_element(read_document(text), headers)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidValueError(f"stored message cannot be read: {type(error).__name__}: {error}") from error

    @classmethod
    def of_message(cls, message: Any) -> Envelope:
        """Return the published message, from the kombu *message* that a worker received."""
        route, body = message.delivery_info, message.body
        data = body.encode() if isinstance(body, str) else bytes(body)
        compression = message.headers.get("compression")
        if compression:
            # kombu has unpacked the body and left the header as it was.
            data, _ = compress(data, compression)
        return cls(
            body=data,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            headers={name: value for name, value in message.headers.items() if name != "redelivered"},
            properties={name: value for name in _PUBLISHED if (value := message.properties.get(name)) is not None},
            exchange=route.get("exchange") or "",
            routing_key=route.get("routing_key") or "",
        )

    def with_call(self, name: str) -> Envelope:
        """Return a copy that belongs to the call *name*; if it was not sent before, it is now."""
        # Last: the packed form has phrases of the other headers in their order.
        headers = {**self.headers, CALL: name, SENT: self.headers.get(SENT, sent_now())}
        return self.like(self.body, headers, self.properties)

    def like(self, body: bytes, headers: Mapping[str, Any], properties: Mapping[str, Any]) -> Envelope:
        """Return a message with the content given and the destination of this one."""
        # Every stored message passes here; dataclasses.replace takes three times as long.
        return Envelope(
            body,
            self.content_type,
            self.content_encoding,
            headers,
            properties,
            self.exchange,
            self.routing_key,
            self.declare,
            self.expires_at,
        )

    def storage_headers(self) -> dict[str, Any]:
        """Return the fields that the record keeps beside the packed message."""
        kept: dict[str, Any] = {}
        if self.declare:
            kept["declare"] = list(self.declare)
        if self.expires_at is not None:
            kept["expires_at"] = self.expires_at
        return kept

    def _element(self, tag: str) -> dict[str, Any]:
        properties = {key: value for key, value in self.properties.items() if key != "priority"}
        body, encoding = self._text()
        if encoding:
            properties["body_encoding"] = encoding
        properties["delivery_info"] = {"exchange": self.exchange, "routing_key": self.routing_key}
        properties["priority"] = self.priority
        properties["delivery_tag"] = tag
        return {
            "body": body,
            "content-encoding": self.content_encoding,
            "content-type": self.content_type,
            "headers": dict(self.headers),
            "properties": properties,
        }

    def _text(self) -> tuple[str, str]:
        # Text stays text: kombu decodes base64 only where the message says so, and it costs a third more.
        if self.content_encoding == "utf-8" and "compression" not in self.headers:
            try:
                return self.body.decode(), ""
            except UnicodeDecodeError:
                pass
        return base64.b64encode(self.body).decode(), "base64"

    @classmethod
    def _from_element(cls, element: Mapping[str, Any], kept: Mapping[str, Any]) -> Envelope:
        properties, headers = dict(element["properties"]), dict(element["headers"])
        route = properties.pop("delivery_info")
        properties.pop("delivery_tag")
        body = element["body"]
        encoded = properties.pop("body_encoding", "") == "base64"
        _check_properties(properties)
        for name in ("id", "task"):
            _check_name(headers.get(name, ""), name)
        return cls(
            body=base64.b64decode(body, validate=True) if encoded else body.encode(),
            content_type=_check_name(element["content-type"], "content-type"),
            content_encoding=_check_name(element["content-encoding"], "content-encoding"),
            headers=headers,
            properties=properties,
            exchange=_check_name(route["exchange"], "exchange"),
            routing_key=_check_name(route["routing_key"], "routing_key"),
            declare=_declare_of(kept),
            expires_at=_expiry_of(kept),
        )


def _check_name(value: Any, name: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_MESSAGE_NAME:
        got = f"{len(value):,} characters" if isinstance(value, str) else type(value).__name__
        raise TypeError(f"{name}: expected text of up to {MAX_MESSAGE_NAME} characters, got {got}")
    return value


def _check_properties(properties: Mapping[str, Any]) -> None:
    if abs(small_integer(properties.get("priority", 0))) > MAX_PRIORITY:
        raise ValueError(f"priority={properties['priority']}: must be from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    if not _OF_THE_PUBLISH.isdisjoint(properties):
        names = ", ".join(sorted(_OF_THE_PUBLISH.intersection(properties)))
        raise ValueError(f"properties: {names} must not be among them, since they are options of the publish")
    _check_name(properties.get("correlation_id") or "", "correlation_id")


def _declare_of(kept: Mapping[str, Any]) -> Sequence[Any]:
    declare = kept.get("declare", ())
    if not isinstance(declare, list | tuple) or len(declare) > MAX_DECLARE:
        raise TypeError(f"declare must be a list of up to {MAX_DECLARE} queues and exchanges")
    for item in declare:
        if not isinstance(item, Mapping):
            _check_name(item, "declare")
    return declare


def _expiry_of(kept: Mapping[str, Any]) -> int | None:
    expires_at = kept.get("expires_at")
    if expires_at is not None and not 0 <= small_integer(expires_at) <= END_OF_CALENDAR_MS:
        raise ValueError(f"expires_at={expires_at}: must be from 0 to {END_OF_CALENDAR_MS}")
    return expires_at


def described_name(item: Any) -> Any:
    """Return the queue name in a result of :func:`redis_queue.celery.message.producer.describe`."""
    return item.get("queue") if isinstance(item, Mapping) else item


def priority_of(properties: Mapping[str, Any]) -> int:
    """Return the priority in *properties* as kombu reads it, limited to MAX_PRIORITY; 0 if it is not given."""
    value = properties.get("priority") or 0
    # An exponent or many digits could make a number of any size, so int() gets only plausible values.
    if not isinstance(value, int | float) and not (isinstance(value, str) and len(value) <= MAX_DIGITS):
        return 0
    try:
        return max(-MAX_PRIORITY, min(int(value), MAX_PRIORITY))
    except (ValueError, OverflowError):
        return 0


class UnknownVersionError(InvalidValueError):
    """A stored message has a form of a later version; it is left alone."""


def pack(element: str, task_id: str = "") -> bytes:
    """Return the compact form of *element*, whose delivery tag is empty; *task_id* is replaced, too."""
    # Only the tag at the end is replaced: a body may hold the same character, which has to stay as it is.
    text = element.removesuffix('"}}') + TAG + '"}}'
    if len(task_id) > MIN_ID and _is_plain(task_id):
        text = text.replace(task_id, _ID, MAX_IDS)
    replaced: set[str] = set()
    for phrase, code in _CODES:
        # Each search reads the whole message.
        if phrase in replaced:
            continue
        shorter = text.replace(phrase, code, MAX_PHRASES)
        if shorter != text:
            text = shorter
            replaced |= _PARTS[phrase]
    return VERSION + text.encode("latin-1")


def expand(data: bytes, entry_id: str) -> str:
    """Return the element that *data* stands for; its delivery tag is :data:`TAG`.

    Raises InvalidValueError for an unknown phrase, for an id that :func:`pack` does not replace, and for more
    replacements than it makes; UnknownVersionError for a form of a later version.
    """
    if not data.startswith(VERSION):
        kind = UnknownVersionError if data[:1] and data[0] < ord(" ") else InvalidValueError
        raise kind(f"stored message begins with {data[:1]!r}: expected {VERSION!r}, the form that this version reads")
    if len(data) > MAX_CODES and len(data.translate(None, _ASCII)) > MAX_CODES:
        raise InvalidValueError(f"stored message has more than {MAX_CODES} replaced phrases")
    parts = _PACKED.split(data[1:].decode("latin-1"))
    try:
        # Every other part is a phrase: a substitution with a function takes twice as long.
        parts[1::2] = map(_BY_CODE.__getitem__, parts[1::2])
    except KeyError as unknown:
        raise InvalidValueError(f"stored message holds {unknown.args[0]!r}, which stands for no phrase") from None
    text = "".join(parts)
    if _ID in text and not _is_plain(entry_id):
        raise InvalidValueError(f"stored message leaves out an id that cannot be {entry_id!r}")
    return text.replace(_ID, entry_id)


def element_of(data: bytes, entry_id: str) -> str:
    """Return the element that *data* stands for, with a new delivery tag; raises what :func:`expand` raises."""
    return expand(data, entry_id).replace(TAG, str(uuid4()))


def needs_reading(element: str) -> bool:
    """Return whether *element* may contain values of kombu's own types, of which a worker makes numbers of any size."""
    # JSON encoders do not escape letters, so an escaped one may hide "__type__".
    return '"__type__"' in element or (r"\u00" in element and _ESCAPED.search(element) is not None)


def _is_plain(id: str) -> bool:
    """Return whether JSON writes *id* as it is."""
    return len(id) <= MAX_ID and id.isascii() and id.isprintable() and '"' not in id and "\\" not in id
