"""Values as text on a page."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Final

from markupsafe import Markup

from redis_queue.basics.logs import escape, hide_secrets
from redis_queue.basics.times import span_text
from redis_queue.model import Unread

MAX_BODY: Final = 20_000
"""Maximum characters of a body that are shown."""

_JSON: Final = json.JSONEncoder(ensure_ascii=False, default=repr, indent=2)
FORMS: Final = {"second": "%Y-%m-%d %H:%M:%S", "minute": "%d %b %H:%M", "day": "%a %d %b %H:%M", "clock": "%H:%M"}
"""Formats of times, as in static/zone.js."""


def moment(at: datetime | None, form: str = "second", *, zone: tzinfo = timezone.utc) -> str:
    """Return a time in *zone*; "-" for None."""
    if at is None:
        return "-"
    try:
        return at.astimezone(zone).strftime(FORMS[form])
    except OverflowError:
        # The ends of the calendar have no time in other zones.
        return at.astimezone(timezone.utc).strftime(FORMS[form])


def machine(at: datetime) -> str:
    """Return a time for the attribute of a <time> element."""
    return at.astimezone(timezone.utc).isoformat()


def until(at: datetime | None, now: datetime) -> str:
    """Return the distance of *at* from *now*: ``in 5 min``, ``3 s ago``; "-" for None."""
    if at is None:
        return "-"
    left = at - now
    return f"{span_text(-left)} ago" if left < timedelta(0) else f"in {span_text(left)}"


def body(value: Any) -> str:
    """Return a body as text: long bodies are cut, likely secrets are hidden."""
    if isinstance(value, Unread):
        return unread_text(value)
    if isinstance(value, bytes):
        return redacted(value[: MAX_BODY * 4].decode(errors="backslashreplace"))
    return redacted(_as_json(value))


def unread_text(value: Any) -> str:
    """Return the text that replaces an unread body; "" for other values."""
    return f"{value.size:,} bytes, too large to read here" if isinstance(value, Unread) else ""


def _as_json(value: Any) -> str:
    # Many brackets on many levels would make a hundred times the bytes: no more is written than is shown.
    parts, size = [], 0
    try:
        for part in _JSON.iterencode(value):
            parts.append(part)
            size += len(part)
            if size > MAX_BODY:
                break
    except RecursionError:
        return "nested too deeply to show"
    return "".join(parts)


def harmless(value: Any) -> Any:
    """Escape control and format characters of text, which could hide or reorder other text; keep other values.

    Applied to every value in a template, before HTML is escaped.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return escape(value, keep="\n\t")


def redacted(text: str) -> str:
    """Hide likely secrets in *text*. Best effort: so bodies are hidden unless requested."""
    if len(text) > MAX_BODY:
        text = f"{text[:MAX_BODY]}… (only the first {MAX_BODY:,} characters)"
    return hide_secrets(text)
