"""Delays and times: checked, in milliseconds, and as people type them."""

from __future__ import annotations

import math
import re
import time
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Final

from redis_queue.errors import InvalidDelayError

Seconds = float | timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

MAX_DELAY = timedelta(days=3653)
"""Ten years: more is almost surely a wrong unit."""

END_OF_CALENDAR_MS = 253_402_300_799_000
"""The last second that a datetime can hold."""

MAX_ISO: Final = 64
"""Maximum characters of a stored time."""

MAX_DELAY_MS = int(MAX_DELAY.total_seconds()) * 1000

_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "m": 60_000, "s": 1000, "ms": 1}
_PART: Final = r"\s*(\d{1,9}(?:\.\d{1,3})?)\s*(d|h|min|ms|m|s)"
_SPAN: Final = re.compile(rf"([-+]?)(?:{_PART})+\s*", re.ASCII)
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?: ([A-Z]{1,6}))?", re.ASCII)

_SINCE_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", None)


def monotonic() -> float:
    """Return the seconds of a clock that never goes back, and does not stand still while the machine sleeps.

    The monotonic clock of Linux does: a machine that wakes up would believe in leases that others have by now.
    """
    return time.monotonic() if _SINCE_BOOT is None else time.clock_gettime(_SINCE_BOOT)


def duration_ms(value: Seconds, *, name: str = "delay") -> int:
    """Return *value* (seconds or timedelta) in milliseconds, rounded up so that nothing is early.

    Raises InvalidDelayError for anything but a number or timedelta, and for NaN, infinity, negative values and more
    than ten years.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidDelayError(f"{name}={value!r}: must be a number of seconds or a timedelta")
    if isinstance(seconds, float) and not math.isfinite(seconds):
        raise InvalidDelayError(f"{name}={value!r}: must be finite")
    if seconds < 0:
        raise InvalidDelayError(f"{name}={value!r}: must be >= 0")
    if seconds > MAX_DELAY_MS / 1000:
        raise InvalidDelayError(f"{name}={value!r}: must be at most ten years in seconds; are these milliseconds?")
    if isinstance(value, timedelta):
        return -(-value // timedelta(milliseconds=1))
    return math.ceil(round(seconds * 1000, 6))


def check_duration(name: str, value: Seconds, low: float, high: float) -> int:
    """Return *value* in milliseconds. Raises InvalidDelayError unless it is *low* to *high* seconds."""
    found = duration_ms(value, name=name)
    if not low <= found / 1000 <= high:
        raise InvalidDelayError(f"{name}={value!r}: must be {low:g} to {high:g} seconds")
    return found


def point_ms(value: datetime, *, name: str = "due_at") -> int:
    """Return an aware datetime as milliseconds since the epoch, rounded up.

    Raises InvalidDelayError for naive datetimes, other types, and years past the ten-year limit.
    """
    if not isinstance(value, datetime):
        raise InvalidDelayError(f"{name}={value!r}: must be an aware datetime")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidDelayError(f"{name}={value!r}: must have a time zone, for example tzinfo=timezone.utc")
    now = datetime.now(timezone.utc)
    try:
        utc = value.astimezone(timezone.utc)
    except OverflowError:
        raise InvalidDelayError(f"{name}={value!r}: must be in the calendar of UTC") from None
    if utc - now > MAX_DELAY:
        raise InvalidDelayError(f"{name}={value!r}: must be at most ten years away")
    return max(0, to_ms(utc))


def to_ms(value: datetime) -> int:
    """Return an aware datetime as milliseconds since the epoch, rounded up; negative before it."""
    return -(-(value - EPOCH) // timedelta(milliseconds=1))


def from_ms(value: float) -> datetime:
    """Return milliseconds since the epoch as an aware datetime in UTC, at the end of the calendar if outside it."""
    return datetime.fromtimestamp(min(max(value, 0), END_OF_CALENDAR_MS) / 1000, timezone.utc)


def iso_time(found: object) -> datetime | None:
    """Return the time of a stored ISO 8601 text of at most 64 characters, with a zone; None for anything else."""
    if not isinstance(found, str) or len(found) > MAX_ISO:
        return None
    try:
        at = datetime.fromisoformat(found)
    except ValueError:
        return None
    return None if at.tzinfo is None else at


def span_text(length: Seconds | None, *, parts: int = 2) -> str:
    """Return a duration in its largest units, at most *parts*: ``2 d 4 h``, ``3.5 s``, ``12 ms``.

    Returns "-" for None and NaN. A negative duration is 0.
    """
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if seconds is None or math.isnan(seconds):
        return "-"
    if seconds < 0.9995:  # noqa: PLR2004 - more is rounded to a second
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 59.95:  # noqa: PLR2004 - more is rounded to a minute
        return f"{seconds:.1f} s".replace(".0 s", " s")
    left = round(seconds)
    found: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= size and len(found) < parts:
            found.append(f"{left // size} {unit}")
            left %= size
        elif found:
            break
    return " ".join(found)


def exact_span_text(ms: int) -> str:
    """Return a duration in ms as a text that :func:`read_span` reads as the same one."""
    return f"{ms} ms" if ms % 1000 else span_text(ms / 1000, parts=4)


When = datetime | timedelta
"""A time, or a span from now."""


def read_time(value: str) -> When:
    """Read ``2030-01-01T00:00Z``, or ``90s``, ``2h``, ``1d12h`` from now; ``-2h`` is two hours ago.

    "UTC" may stand for Z. Raises InvalidDelayError.
    """
    span = read_span(value)
    if span is not None:
        return span
    try:
        at = datetime.fromisoformat(re.sub(r"([zZ]| UTC)$", "+00:00", value))
    except ValueError:
        text = f"{value!r}: must be a time like 2030-01-01T00:00Z, or a span like 90s, 2h or 1d12h"
        raise InvalidDelayError(text) from None
    if at.utcoffset() is None:
        raise InvalidDelayError(f"{value!r}: must have a time zone; add Z for UTC, or one like +01:00")
    return at


def with_zone(text: str, zone: tzinfo | None) -> str:
    """Return a time as tables show it in *zone*, with or without the name of the zone, as an ISO time with its offset.

    So a time that was copied from a table can be read. None is the zone of this machine. Other text stays as it is.
    """
    found = _MOMENT.fullmatch(text.strip())
    if found is None:
        return text
    try:
        naive = datetime.fromisoformat(found[1])
        at = naive.astimezone() if zone is None else naive.replace(tzinfo=zone)
        return at.isoformat() if found[2] in (None, at.tzname()) else text
    except (ValueError, OverflowError, OSError):
        return text


def read_span(text: str) -> timedelta | None:
    """Return the duration in *text*: ``90s``, ``1d12h``, ``1 h 30 min``, ``1.5 s``, ``-2h``; None for anything else.

    More than ten years are a second more than that.
    """
    found = _SPAN.fullmatch(text)
    if found is None:
        return None
    ms = sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, text))
    span = timedelta(milliseconds=min(ms, MAX_DELAY_MS + 1000))
    return -span if found[1] == "-" else span
