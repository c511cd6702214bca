"""The compact bytes that a message is stored as.

They hold the element that kombu's Redis transport keeps in its lists, with single bytes in place of phrases that nearly
all messages contain. JSON is written in ASCII, so every byte above 0x7f is free for that. A script in Redis puts the
phrases back with one substitution.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from redis_queue.errors import InvalidValueError
from redis_queue.store.ids import MAX_ID

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

MOST_IDS: Final = 100
MOST_PHRASES: Final = 10
"""Most times that the id, and each phrase, is replaced in a message, so that unpacking cannot grow it without limit."""

MOST_CODES: Final = 500
"""Most replacements in one message, all together; a script contains the same number."""

_ASCII: Final = bytes(range(128))


class UnknownVersionError(InvalidValueError):
    """A stored message has a form of a later version; it is left alone."""


def pack(element: str, task_id: str = "") -> bytes:
    """Return the compact form of *element*, whose delivery tag is empty; *task_id* is replaced, too."""
    # Only the tag at the end is replaced: a body may hold the same character, which has to stay as it is.
    text = element.removesuffix('"}}') + TAG + '"}}'
    if len(task_id) > MIN_ID and _is_plain(task_id):
        text = text.replace(task_id, _ID, MOST_IDS)
    replaced: set[str] = set()
    for phrase, code in _CODES:
        # Each search reads the whole message.
        if phrase in replaced:
            continue
        shorter = text.replace(phrase, code, MOST_PHRASES)
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
    if len(data) > MOST_CODES and len(data.translate(None, _ASCII)) > MOST_CODES:
        raise InvalidValueError(f"stored message has more than {MOST_CODES} replaced phrases")
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
    """Tell whether *element* may contain values of kombu's own types, from which a worker makes numbers of any size."""
    # JSON encoders do not escape letters, so an escaped one may hide "__type__".
    return '"__type__"' in element or (r"\u00" in element and _ESCAPED.search(element) is not None)


def _is_plain(id: str) -> bool:
    """Tell whether JSON writes *id* as it is."""
    return len(id) <= MAX_ID and id.isascii() and id.isprintable() and '"' not in id and "\\" not in id
