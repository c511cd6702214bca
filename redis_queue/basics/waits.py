"""Waits: growing pauses, an event that ends them, and calls in a background thread so that no event loop waits."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from redis_queue.basics.logs import logger_of

logger = logger_of(__name__)

RETRY_CAP: Final = 300.0

IDLE: Final = 10.0
"""Seconds after which an idle thread ends."""


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

    ``threading.Event.set`` takes a lock. In a signal handler it waits forever if the handler interrupted the same
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


class Background:
    """Runs calls in order, in a thread that ends when idle. Exceptions of a call are logged."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start without calls and with a new lock: a forked child has no thread to run the calls or free the lock."""
        self._calls: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._lock = threading.Lock()
        self._running = False

    def run(self, call: Callable[[], Any]) -> None:
        """Run *call* soon; return at once."""
        with self._lock:
            self._calls.put(call)
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="redis-queue-background", daemon=True).start()

    def _work(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Exception:
                logger.exception("a call in the background failed", extra={"action": "background_failed"})
            # Free its objects now, not at the next call.
            del call

    def _next(self) -> Callable[[], Any] | None:
        try:
            return self._calls.get(timeout=IDLE)
        except Empty:
            with self._lock:
                # A call that arrived since then is still run by this thread.
                self._running = not self._calls.empty()
                return self._calls.get() if self._running else None
