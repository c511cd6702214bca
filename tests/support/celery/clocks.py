"""A clock that tests advance by hand."""

from __future__ import annotations

import time
from datetime import datetime, timezone


class ManualClock:
    """The `clock` of a queue: milliseconds since the epoch, starting now."""

    def __init__(self) -> None:
        self._now = time.time_ns() // 1_000_000

    def __call__(self) -> int:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += round(seconds * 1000)

    def after(self, seconds: float) -> datetime:
        """Return the time *seconds* from now."""
        return datetime.fromtimestamp(self._now / 1000 + seconds, timezone.utc)
