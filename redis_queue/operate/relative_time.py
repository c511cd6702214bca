"""Times as people type them: absolute, or relative to now."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

from redis_queue.basics.times import MAX_DELAY
from redis_queue.errors import InvalidDelayError

When = datetime | timedelta
"""A time, or a span from now."""

_UNITS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_SPAN = re.compile(
    r"(?P<sign>[-+]?)(?=\d)(?:(?P<d>\d{1,6})d)?(?:(?P<h>\d{1,7})h)?(?:(?P<m>\d{1,9})m)?(?:(?P<s>\d{1,9})s)?"
)


def read(value: str) -> When:
    """Read ``2030-01-01T00:00Z``, or ``90s``, ``2h``, ``1d12h`` from now; ``-2h`` is two hours ago.

    Raises InvalidDelayError.
    """
    span = _span(value)
    if span is not None:
        return span
    try:
        at = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", value))
    except ValueError:
        text = f"{value!r}: must be a time like 2030-01-01T00:00Z, or a span like 90s, 2h or 1d12h"
        raise InvalidDelayError(text) from None
    if at.utcoffset() is None:
        raise InvalidDelayError(f"{value!r}: must have a time zone; add Z for UTC, or one like +01:00")
    return at


def _span(text: str) -> timedelta | None:
    found = _SPAN.fullmatch(text)
    if found is None:
        return None
    seconds = sum(int(found[unit] or 0) * size for unit, size in _UNITS.items())
    span = timedelta(seconds=min(seconds, MAX_DELAY.total_seconds() + 1))
    return -span if found["sign"] == "-" else span
