"""Check durations and times of callers, and convert them to integer milliseconds."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

from redis_queue.errors import InvalidDelayError

Seconds = float | timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

MAX_DELAY = timedelta(days=3653)
"""Ten years: more is almost surely a wrong unit."""

END_OF_CALENDAR_MS = 253_402_300_799_000
"""The last second that a datetime can hold."""

MAX_DELAY_MS = int(MAX_DELAY.total_seconds()) * 1000


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
