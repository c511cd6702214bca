"""An event that a signal handler may set."""

from __future__ import annotations

import contextlib
import threading


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
