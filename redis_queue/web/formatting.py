"""How values are written on a page."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Final

from markupsafe import Markup

from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.logs import escape
from redis_queue.model import Entry, Unread
from redis_queue.times import span_text

MAX_BODY: Final = 20_000
"""Characters of a body that are shown."""

HIDDEN: Final = "•••"

_KEYWORD = r"passw(?:or)?d|passphrase|secret|token|api[_-]?key|private[_-]?key|authorization|cookie|credential"
_QUOTE = r"""\\{0,8}["']"""
# Each part is bounded or goes on to the end of the text, so that no text makes it slow.
_SECRET = re.compile(
    rf"""(?P<name>(?:{_KEYWORD})[\w.-]{{0,60}}(?:{_QUOTE})?\s{{0,8}}[:=]\s{{0,8}})"""
    r"""(?P<value>[bu]?"(?:[^"\\]|\\.)*(?:"|$)|[bu]?'(?:[^'\\]|\\.)*(?:'|$)|\[[^\]]*(?:\]|$)"""
    r"""|(?:(?:Bearer|Basic)\s{1,8})?[^\s,;&)}\]]+)""",
    re.IGNORECASE | re.DOTALL,
)
_IN_URL = re.compile(r"(?<=://)[^/\s:@]{0,200}:[^/\s@]{0,1000}(?=@)")
_BEARER = re.compile(r"\b(Bearer|Basic)\s{1,8}[\w.~+/-]{6,}=*", re.IGNORECASE)


FORMS: Final = {"second": "%Y-%m-%d %H:%M:%S", "minute": "%d %b %H:%M", "day": "%a %d %b %H:%M", "clock": "%H:%M"}
"""Formats of times; static/zone.js has the same."""


def moment(at: datetime | None, form: str = "second", *, zone: tzinfo = timezone.utc) -> str:
    """Return a time point in *zone*."""
    if at is None:
        return "-"
    try:
        return at.astimezone(zone).strftime(FORMS[form])
    except OverflowError:
        # At the end of the calendar.
        return at.astimezone(timezone.utc).strftime(FORMS[form])


def machine(at: datetime) -> str:
    """Return a time point for a <time> element."""
    return at.astimezone(timezone.utc).isoformat()


def until(at: datetime | None, now: datetime) -> str:
    """Return how far away a time point is: ``in 5 min``, ``3 s ago``."""
    if at is None:
        return "-"
    left = at - now
    return f"{span_text(-left)} ago" if left < timedelta(0) else f"in {span_text(left)}"


def body(value: Any) -> str:
    """Return a body as text, cut if it is long; what looks like a secret is hidden."""
    if isinstance(value, Unread):
        return left_out(value)
    if isinstance(value, bytes):
        return redacted(value[: MAX_BODY * 4].decode(errors="backslashreplace"))
    return redacted(_as_json(value))


def left_out(value: Any) -> str:
    """Return the text in place of a body that was not read; "" for one that was."""
    return f"{value.size:,} bytes, too large to be read here" if isinstance(value, Unread) else ""


def _as_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=repr, indent=2)
    except RecursionError:
        return "nested too deeply to be shown"


def arguments(entry: Entry, task: TaskEntry) -> str:
    """Return what a task is called with, or the body of what is no task."""
    return redacted(f"{task.args} {task.kwargs}") if task.task else body(entry.payload)


def harmless(value: Any) -> Any:
    """Return text without what moves, hides or reverses what stands beside it; other values as they are.

    It goes over everything that a template writes, before HTML is escaped.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return escape(value, keep="\n\t")


def redacted(text: str) -> str:
    """Return *text* with what looks like a secret hidden; a net with holes, so bodies stay hidden until asked for."""
    if len(text) > MAX_BODY:
        text = f"{text[:MAX_BODY]}… ({len(text):,} characters)"
    text = _SECRET.sub(lambda found: f"{found['name']}{HIDDEN}", text)
    return _IN_URL.sub(HIDDEN, _BEARER.sub(rf"\1 {HIDDEN}", text))
