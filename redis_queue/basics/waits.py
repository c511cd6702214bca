"""Waits: growing pauses before the next attempt, and an event that ends them."""

from __future__ import annotations

import contextlib
import random
import threading
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


class StopEvent:
    """A `threading.Event` that is never cleared and that a signal handler may set.

    ``threading.Event.set`` takes a lock. In a signal handler it waits for ever if the handler interrupted the same
    thread in `wait` while that held the lock. `set` only releases a lock, which never waits.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._held_until_set = threading.Lock()
        self._held_until_set.acquire()

    def set(self) -> None:
        """Set the event and wake all threads that wait for it."""
        if not self._is_set:
            self._is_set = True
            self._release()

    def is_set(self) -> bool:
        """Return whether the event was set."""
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Wait until the event is set, for at most *seconds*; return whether it is set."""
        if self._held_until_set.acquire(timeout=seconds):
            self._release()  # for the next thread that waits
        return self._is_set

    def _release(self) -> None:
        # Another thread, or a signal handler within `set`, may have released it in between.
        with contextlib.suppress(RuntimeError):
            self._held_until_set.release()
