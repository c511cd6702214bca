"""Aside: what the event loop of a worker must not wait for, one call after another in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from redis_queue.logs import logger_of

logger = logger_of(__name__)

IDLE: Final = 10.0
"""Seconds after which a thread without work ends."""


class Aside:
    """Runs calls in order; its thread lives while there are any. What a call raises is logged."""

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
                threading.Thread(target=self._work, name="redis-queue-aside", daemon=True).start()

    def _work(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Exception:
                logger.exception("a call beside the worker failed", extra={"action": "aside_failed"})
            # Else what it needed would live until the next one comes.
            del call

    def _next(self) -> Callable[[], Any] | None:
        try:
            return self._calls.get(timeout=IDLE)
        except Empty:
            with self._lock:
                # One that came since then is this thread's as well.
                self._running = not self._calls.empty()
                return self._calls.get() if self._running else None
