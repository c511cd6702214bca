"""An event that a signal handler may set."""

from __future__ import annotations

import contextlib
import queue


class StopEvent:
    """A `threading.Event` that is never cleared and that a signal handler may set.

    ``threading.Event.set`` takes a lock. In a signal handler it waits for ever if the handler interrupted the same
    thread in `wait` while that held the lock. ``queue.SimpleQueue.put`` is reentrant.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._wake_ups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Set the event and wake all threads that wait for it."""
        self._is_set = True
        self._wake_ups.put(None)

    def is_set(self) -> bool:
        """Return whether the event was set."""
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Wait until the event is set, for at most *seconds*; return whether it is set."""
        with contextlib.suppress(queue.Empty):
            self._wake_ups.get(timeout=seconds)
            self._wake_ups.put(None)  # for the next thread that waits
        return self._is_set
