"""Check the delay of a call before it is sent."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from celery.utils.time import maybe_iso8601, maybe_make_aware

from redis_queue.basics.times import MAX_DELAY, Seconds, duration_ms
from redis_queue.errors import InvalidDelayError

if TYPE_CHECKING:
    from celery import Celery


def seconds_of(countdown: Seconds | None) -> float | None:
    """Return *countdown* in seconds; negative values are sent at once. Raises InvalidDelayError.

    It may be more than ten years: the store does not take such a call, and Celery does.
    """
    if countdown is None:
        return None
    seconds = countdown.total_seconds() if isinstance(countdown, timedelta) else countdown
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        # Celery refuses numbers of more than 32 bits.
        if -math.inf < seconds < 0:
            return max(seconds, -MAX_DELAY.total_seconds())
        if MAX_DELAY.total_seconds() < seconds < 1 << 31:
            return seconds
    duration_ms(countdown, name="countdown")
    return seconds


def check_eta(eta: Any, app: Celery) -> None:
    """Raise InvalidDelayError unless *eta* is a datetime, or one in ISO 8601.

    It may be more than ten years away: the store does not take such a call, and Celery does.
    """
    if not isinstance(eta, str | datetime):
        raise InvalidDelayError(f"eta={eta!r}: must be a datetime")
    try:
        moment = maybe_make_aware(maybe_iso8601(eta), app.timezone)
    except (ValueError, OverflowError):
        raise InvalidDelayError(f"eta={eta!r}: must be a datetime, or one in ISO 8601") from None
    try:
        moment.astimezone(timezone.utc)
    except OverflowError:
        raise InvalidDelayError(f"eta={eta!r}: must be in the calendar of UTC") from None
