"""What a Consumer needs around its handler: checks of the handler, the verdict if it raised, acks of what is done."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import Seconds, duration_ms, monotonic
from redis_queue.basics.waits import retry_delay
from redis_queue.errors import Dead, InvalidValueError, Nack
from redis_queue.model import Message

Handler = Callable[[Message], Any]

MAX_WAIT: Final = 0.005
"""Seconds: a killed process repeats at most the messages of this time, and those whose handlers run."""


def check_handler(handler: Any) -> None:
    """Raise InvalidValueError unless *handler* is a plain function or another callable that runs when it is called."""
    if not callable(handler):
        raise InvalidValueError(f"handler={handler!r}: must be a function that takes a message")
    for found in (handler, type(handler).__call__):
        if any(is_lazy(found) for is_lazy in _LAZY):
            raise InvalidValueError(
                f"handler={handler!r}: must be a plain function, because calling this one would not run its code; a"
                " plain function may call asyncio.run()"
            )


_LAZY: Final = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def check_ran(result: object) -> None:
    """Raise if a handler returned an object whose code has not run yet."""
    if result is None or not (inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return
    if inspect.iscoroutine(result):
        result.close()
    raise InvalidValueError(f"the handler returned a {type(result).__name__}, whose code did not run")


logger = logger_of(__name__)


class GiveBack(NamedTuple):
    """How to nack a message."""

    reason: object
    delay: Seconds = 0
    dead: bool = False
    counted: bool = True


def verdict_on(message: Message, error: BaseException, after: Callable[[int], Seconds]) -> GiveBack:
    """Return how to give *message* back after *error*: as a Verdict says, else with the delay ``after(deliveries)``."""
    if isinstance(error, Dead):
        return GiveBack(error.reason, dead=True)
    if isinstance(error, Nack):
        return GiveBack(error.reason, _checked(message, lambda: error.delay), counted=bool(error.counted))
    return GiveBack(error, _checked(message, lambda: after(message.deliveries)))


def _checked(message: Message, ask: Callable[[], Seconds]) -> Seconds:
    try:
        delay = ask()
        duration_ms(delay)
    except Exception:
        # An invalid delay must neither end the loop nor bring the message back at once.
        logger.exception("invalid delay", extra={"action": "delay_refused", "message_id": message.id})
        return retry_delay(message.deliveries)
    return delay


class AckBuffer:
    """Collects finished messages, separately for each thread.

    A thread takes its messages back to settle them itself. If it does not within 5 ms, because its next handler takes
    longer, a thread of the buffer calls *ack* with them.
    """

    def __init__(self, ack: Callable[[list[Message]], object]) -> None:
        self._ack = ack
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[float, list[Message]]] = {}
        self._filled = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, message: Message) -> None:
        """Add a finished message of the calling thread."""
        with self._lock:
            waiting = self._waiting.get(threading.get_ident())
            if waiting is not None:
                waiting[1].append(message)
                return
            self._waiting[threading.get_ident()] = monotonic(), [message]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="redis-queue-acks", daemon=True)
                self._thread.start()
        self._filled.set()

    def take(self) -> list[Message]:
        """Remove the messages of the calling thread and return them."""
        with self._lock:
            return self._waiting.pop(threading.get_ident(), (0.0, []))[1]

    def close(self, timeout: float) -> None:
        """Ack what is left and wait for the end of the thread for *timeout* seconds."""
        self._closed.set()
        self._filled.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        closed = False
        while not closed:
            self._filled.wait()
            self._filled.clear()
            closed = self._closed.is_set()
            while (pause := self._pause()) is not None:
                self._closed.wait(pause)
                if due := self._take_due():
                    self._ack(due)

    def _pause(self) -> float | None:
        """Return the seconds until messages are due; None: there are none."""
        with self._lock:
            if not self._waiting:
                return None
            return max(0.0, min(since for since, _ in self._waiting.values()) + MAX_WAIT - monotonic())

    def _take_due(self) -> list[Message]:
        latest = monotonic() if self._closed.is_set() else monotonic() - MAX_WAIT
        with self._lock:
            due = [thread for thread, (since, _) in self._waiting.items() if since <= latest]
            return [message for thread in due for message in self._waiting.pop(thread)[1]]
