"""Rows of failures: JSON and text of limited size, and back."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from typing import Any, Final, get_args

from redis_queue.basics.logs import hide_secrets
from redis_queue.basics.times import from_ms
from redis_queue.monitor.model import Failure, FailureGroup, FailureKind, GroupRow
from redis_queue.monitor.rows import MAX_TEXT, UNREADABLE, cut, private_text, seconds_of, text_of
from redis_queue.store.codec import read_document, small_integer
from redis_queue.store.ids import id_text, is_id

MAX_FAILURE_TEXT: Final = 1024
"""Maximum bytes of the text of an exception, of the args, and of the kwargs."""

MAX_TRACEBACK: Final = 16 * 1024
"""Maximum bytes of a traceback."""

HEAD: Final = 1024
"""Bytes that a long traceback keeps from its beginning; the others are those at its end."""

MAX_MESSAGE: Final = 64 * 1024
"""Maximum bytes of a packed message; a task with a longer one cannot be retried."""

MAX_FAILURE: Final = 115_000
"""Maximum bytes of memory that a failure takes in Redis, in all keys."""

SEPARATOR: Final = b"\0"

_ROW: Final = re.compile(rb"([^\0]{0,2040})\0([^\0]{0,2040})\0(.{1,20000})", re.DOTALL)
_TRACEBACK: Final = re.compile(rb"(\d{1,6})\n")
_GROUP_NAME: Final = re.compile(rb"([^\0]{0,2040})\0([^\0]{0,2040})")
_GROUP: Final = re.compile(rb"(\d{1,15}) (\d{1,15}) (\d{1,15}) (.{1,1020})", re.DOTALL)
_NAMES: Final = ("task", "queue", "worker", "exception", "release")
_TEXTS: Final = ("message", "args", "kwargs")


def failure_id(task_id: str) -> str:
    """Return the id under which a failure of *task_id* is kept: a digest if it is too long or not printable."""
    return task_id if is_id(task_id) else hashlib.sha256(task_id.encode(errors="replace")).hexdigest()


def write_failure(failure: Failure) -> tuple[str, str, bytes, bytes]:
    """Return the task, the exception, the JSON, and the text with the traceback and the packed message.

    Likely secrets are hidden in all texts, but not in the message, with which the task is sent again.
    """
    names = {name: name_of(getattr(failure, name)) for name in _NAMES}
    body = failure.body if failure.body is not None and len(failure.body) <= MAX_MESSAGE else b""
    row = {
        "kind": failure.kind,
        "attempts": failure.attempts,
        "seconds": None if failure.seconds is None else round(failure.seconds, 3),
        "size": len(body),
        **{name: text for name, text in names.items() if text},
        **{name: text for name in _TEXTS if (text := private_text(getattr(failure, name), MAX_FAILURE_TEXT))},
    }
    trace = cut(hide_secrets(cut_middle(failure.traceback)), MAX_TRACEBACK).encode(errors="replace")
    summary = json.dumps(row, ensure_ascii=False).encode(errors="replace")
    return names["task"], names["exception"], summary, b"%d\n%b%b" % (len(trace), trace, body)


def read_failure(raw_id: bytes, at: float, row: bytes | None) -> Failure | None:
    """Return a failure without its traceback and message; None for an unreadable row."""
    parts = _ROW.fullmatch(row or b"")
    if parts is None:
        return None
    try:
        found: Any = read_document(parts[3])
        if found["kind"] not in get_args(FailureKind):
            return None
        texts: dict[str, Any] = {name: text_of(found.get(name, ""), MAX_TEXT) for name in _NAMES}
        texts |= {name: text_of(found.get(name, ""), MAX_FAILURE_TEXT) for name in _TEXTS}
        return Failure(
            id=id_text(raw_id),
            failed_at=from_ms(at),
            kind=found["kind"],
            attempts=small_integer(found["attempts"]),
            seconds=seconds_of(found["seconds"]),
            size=small_integer(found["size"]),
            **texts,
        )
    except UNREADABLE:
        return None


def with_traceback(failure: Failure, detail: bytes | None) -> Failure:
    """Return *failure* with its traceback and message; unreadable ones are left out."""
    parts = _TRACEBACK.match(detail or b"")
    if detail is None or parts is None:
        return failure
    start, size = parts.end(), int(parts[1])
    trace, body = detail[start : start + size], detail[start + size :]
    if size > MAX_TRACEBACK or len(trace) < size or len(body) > MAX_MESSAGE:
        return failure
    return replace(failure, traceback=trace.decode(errors="replace"), body=body or None)


def read_group(name: bytes, row: bytes) -> GroupRow | None:
    """Return a group; None for an unreadable one, and for a field that is not a group."""
    names, parts = _GROUP_NAME.fullmatch(name), _GROUP.fullmatch(row)
    if names is None or parts is None:
        return None
    group = FailureGroup(names[1].decode(errors="replace"), names[2].decode(errors="replace"))
    return GroupRow(group, int(parts[1]), from_ms(int(parts[2])), from_ms(int(parts[3])), id_text(parts[4]))


def name_of(text: str) -> str:
    """Return *text* as a name: on one line, of limited length."""
    short = text[:MAX_TEXT]
    return short if short.isprintable() else "".join(char if char.isprintable() else "?" for char in short)


def cut_middle(text: str) -> str:
    """Return a traceback in at most :data:`MAX_TRACEBACK` bytes; a line tells how much is left out in its middle.

    Words at the cuts are left out: a part of a secret would not be recognized.
    """
    if len(text) * 4 <= MAX_TRACEBACK or len(text.encode(errors="replace")) <= MAX_TRACEBACK:
        return cut(text, MAX_TRACEBACK)
    head = cut(text, HEAD).rsplit(None, 1)[0]
    tail = text[-MAX_TRACEBACK:].encode(errors="replace")
    note = f"\n… about {max(1, len(text) - MAX_TRACEBACK):,} characters are left out …\n"
    room = MAX_TRACEBACK - len(head.encode()) - len(note.encode())
    end = tail[-room:].decode(errors="ignore").split(None, 1)[-1]
    return cut(f"{head}{note}{end}", MAX_TRACEBACK)
