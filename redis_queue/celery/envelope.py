"""Envelope: a Celery message between its capture and its publish, and the compact bytes it is stored as.

The stored form is the element that kombu's Redis transport keeps in its lists, with what is the same in nearly all
messages replaced by single bytes. JSON is written in ASCII, so every byte above 0x7f is free for that; a script in
Redis can put the phrases back with one substitution.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

from kombu.compression import compress
from kombu.utils.json import JSONEncoder, object_hook

from redis_queue.celery.attempt import CALL
from redis_queue.errors import InvalidValueError

VERSION: Final = b"\x01"
"""First byte of a packed message. A later form gets another one; JSON never begins with a control character."""

_ID: Final = "\x80"
TAG: Final = "\x81"
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
_PACKED = re.compile("[\x82-\xff]")

_PUBLISHED: Final = ("correlation_id", "reply_to", "delivery_mode", "priority", "message_id", "app_id")
"""Properties that a publisher gives."""

MIN_ID: Final = 8
"""Ids as short as this could stand anywhere in a message; they are left as they are."""

_ENCODER: Final = JSONEncoder(separators=(",", ":"))
_PLAIN: Final = json.JSONDecoder()
_TYPED: Final = json.JSONDecoder(object_hook=object_hook)


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
    #: Queues to declare before a publish, as :func:`redis_queue.celery.queues.describe` gives them.
    declare: Sequence[Any] = field(default=())
    #: When its time to live ends, ms since the epoch; None means never.
    expires_at: int | None = None

    @property
    def id(self) -> str:
        """The task id."""
        return str(self.headers.get("id") or self.properties.get("correlation_id") or "")

    @property
    def task(self) -> str:
        """The name of the task, "" where only the body tells (protocol 1)."""
        return str(self.headers.get("task") or "")

    @property
    def priority(self) -> int:
        """The priority; 0 where none was given."""
        return priority_of(self.properties)

    @property
    def queue(self) -> str:
        """The Celery queue that it is for; "" where only its exchange knows."""
        declared = next((item for item in self.declare if isinstance(item, str)), "")
        return declared or ("" if self.exchange else self.routing_key)

    def element(self, tag: str) -> str:
        """Return the element of a list of kombu's Redis transport, with *tag* as its delivery tag."""
        return _ENCODER.encode(self._element(tag))

    def pack(self, entry_id: str | None = None) -> bytes:
        """Return the compact form for the entry *entry_id*, by default one with the id of the task."""
        # The tag stands at the end; a body may hold the same character, which has to stay as it is.
        text = self.element("").removesuffix('"}}') + TAG + '"}}'
        task_id = self.id
        if entry_id in (None, task_id) and len(task_id) > MIN_ID and _is_left_out(task_id):
            text = text.replace(task_id, _ID)
        for phrase, code in _CODES:
            text = text.replace(phrase, code)
        return VERSION + text.encode("latin-1")

    @classmethod
    def unpack(cls, data: bytes, entry_id: str, headers: Mapping[str, Any] | None = None) -> Envelope:
        """Return what :meth:`pack` stored in the entry *entry_id*, whose record has *headers*.

        Raises InvalidValueError for bytes that are no packed message, UnknownVersionError for those of a later form.
        """
        if not data.startswith(VERSION):
            kind = UnknownVersionError if data[:1] and data[0] < ord(" ") else InvalidValueError
            raise kind(f"stored message begins with {data[:1]!r}: not a form that this version reads")
        try:
            text = expand(data, entry_id)
            # A hook is asked for each object in the message: spared where none can be of a type of its own.
            decoder = _TYPED if '"__type__"' in text else _PLAIN
            return cls._from_element(decoder.decode(text), headers or {})
        except Exception as error:  # what decodes a type of its own in a header may raise anything
            raise InvalidValueError(f"stored message cannot be read: {type(error).__name__}: {error}") from error

    @classmethod
    def of_message(cls, message: Any) -> Envelope:
        """Return what was published, from the kombu *message* that a worker got."""
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
        """Return a copy that belongs to the call *name*."""
        return replace(self, headers={**self.headers, CALL: name})

    def storage_headers(self) -> dict[str, Any]:
        """Return what the record keeps beside the packed message."""
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
        properties["priority"] = self.properties.get("priority") or 0
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
        properties = dict(element["properties"])
        route = properties.pop("delivery_info")
        properties.pop("delivery_tag")
        body = element["body"]
        encoded = properties.pop("body_encoding", "") == "base64"
        declare, expires_at = kept.get("declare", ()), kept.get("expires_at")
        if not isinstance(declare, list | tuple) or not isinstance(expires_at, int | None):
            raise TypeError("its record has headers of other types")
        return cls(
            body=base64.b64decode(body, validate=True) if encoded else body.encode(),
            content_type=element["content-type"],
            content_encoding=element["content-encoding"],
            headers=dict(element["headers"]),
            properties=properties,
            exchange=route["exchange"],
            routing_key=route["routing_key"],
            declare=declare,
            expires_at=expires_at,
        )


class UnknownVersionError(InvalidValueError):
    """A stored message has a form of a later version; it is left alone."""


def priority_of(properties: Mapping[str, Any]) -> int:
    """Return the priority among *properties* as kombu reads it; 0 where none was given."""
    try:
        return int(properties.get("priority") or 0)
    except (TypeError, ValueError, OverflowError):
        return 0


def expand(data: bytes, entry_id: str) -> str:
    """Return the element that *data* stands for; the delivery tag is left as one byte 0x81.

    Raises InvalidValueError for an unknown phrase, and for an id that :meth:`Envelope.pack` does not leave out.
    """
    text = _PACKED.sub(_phrase, data[1:].decode("latin-1"))
    if _ID in text and not _is_left_out(entry_id):
        raise InvalidValueError(f"stored message has another id: {entry_id!r} has to stand in it")
    return text.replace(_ID, entry_id)


def element_of(data: bytes, entry_id: str) -> str:
    """Return the element that *data* stands for, with a new delivery tag."""
    return expand(data, entry_id).replace(TAG, str(uuid4()))


def _is_left_out(task_id: str) -> bool:
    """Tell whether JSON writes an id as it is."""
    return task_id.isascii() and task_id.isprintable() and '"' not in task_id and "\\" not in task_id


def _phrase(found: re.Match[str]) -> str:
    try:
        return _BY_CODE[found[0]]
    except KeyError:
        raise InvalidValueError(f"stored message holds {found[0]!r}, which stands for nothing") from None
