"""Allowance: how many overdue entries may go per second."""

from __future__ import annotations

import math
import time


class Allowance:
    """How many overdue entries may go at *rate* per second; without a rate, any number."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._left = 0.0
        self._at = -math.inf

    def take(self, limit: int) -> int:
        """Return how many of *limit* may go now."""
        if self._rate is None:
            return limit
        now = time.monotonic()
        self._left = min(max(1.0, self._rate), self._left + (now - self._at) * self._rate)
        self._at = now
        return min(limit, int(self._left))

    def spend(self, count: int) -> None:
        """Take away what went."""
        self._left -= count
