"""DrainThread: calls a connection back in a thread of its own, in workers without an event loop."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from redis_queue.celery.consume.gate.channel import ERRORS

WAIT: Final = 0.5
"""Most seconds between two looks whether the worker has room."""

CLOSING: Final = 10.0
"""Most seconds that a worker waits for the thread."""


class DrainThread:
    """Drains *connection*; a greenlet in a pool of greenlets. *on_error* gets the errors of the store."""

    def __init__(self, connection: Any, on_error: Callable[[Exception], None]) -> None:
        self._connection = connection
        self._on_error = on_error
        self._runs, self._closed = threading.Event(), threading.Event()
        self._runs.set()
        self._thread = threading.Thread(target=self._drain, name="redis-queue-gate", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Drain nothing until :meth:`go_on`."""
        self._runs.clear()

    def go_on(self) -> None:
        """Drain again."""
        self._runs.set()

    def close(self) -> None:
        """Drain nothing any more."""
        self._closed.set()
        self._runs.set()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSING)

    def _drain(self) -> None:
        while self._runs.wait() and not self._closed.is_set():
            try:
                self._connection.drain_events(timeout=WAIT)
            except socket.timeout:  # noqa: UP041 - kombu raises it
                continue
            except ERRORS as error:
                self._on_error(error)
