"""Background: run calls in a background thread so that the event loop of a worker never blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from redis_queue.basics.logs import logger_of

logger = logger_of(__name__)

IDLE: Final = 10.0
"""Seconds after which an idle thread ends."""


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
