"""Pauses before the next attempt."""

from __future__ import annotations

import random
from typing import Final

RETRY_CAP: Final = 300.0


class Backoff:
    """Growing pauses with jitter, for attempts to reach Redis: from *first* to *cap* seconds."""

    def __init__(self, *, first: float = 0.05, cap: float = 5.0) -> None:
        self._first = first
        self._cap = cap
        self._failures = 0

    def next(self) -> float:
        """Return the seconds to wait after another failure."""
        self._failures += 1
        longest = min(self._cap, self._first * 2.0 ** min(self._failures - 1, 30))
        return random.uniform(longest / 2, longest)

    def reset(self) -> None:
        """Start again at the first pause; call it after a success."""
        self._failures = 0


def retry_delay(deliveries: int) -> float:
    """Return the delay in seconds after *deliveries* failed deliveries: 1, 2, 4 ... 300, with jitter."""
    return random.uniform(0.75, 1.0) * min(RETRY_CAP, 2.0 ** min(deliveries - 1, 30))
