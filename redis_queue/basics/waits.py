"""Waits: growing pauses, an event that ends them, calls in other threads, and waits that leave an event loop free."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

from redis_queue.basics.logs import logger_of

logger = logger_of(__name__)

RETRY_CAP: Final = 300.0

IDLE: Final = 10.0
"""Seconds after which an idle thread ends."""

T = TypeVar("T")


class LoopCall(Protocol):
    """A call of synchronous code on an event loop: where it would block, the loop runs other tasks meanwhile.

    :mod:`redis_queue.aio` makes them.
    """

    #: No other call has this number as long as this one runs.
    lane: int

    def is_current(self) -> bool:
        """Return whether the caller is part of this call: its context may have been copied to other tasks."""

    def sleep(self, seconds: float) -> None:
        """Sleep."""

    def in_thread(self, work: Callable[[], T]) -> T:
        """Return what *work* returns in another thread."""

    def idle(self, link: object) -> list[Any]:
        """Return the list of idle connections that *link* has on this event loop, which closes them at its end."""

    def connect(self, pool: Any) -> Any:
        """Return a new connection with the settings of *pool*, a pool of redis-py, that waits on the loop."""


CURRENT: Final[ContextVar[LoopCall | None]] = ContextVar("redis_queue_loop_call", default=None)


def loop_call() -> LoopCall | None:
    """Return the LoopCall that the caller is part of; None for an ordinary call, which may block its thread."""
    found = CURRENT.get()
    return found if found is not None and found.is_current() else None


def sleep(seconds: float) -> None:
    """Sleep without blocking an event loop."""
    call = loop_call()
    if call is None:
        time.sleep(seconds)
    else:
        call.sleep(seconds)


def off_loop(work: Callable[[], T]) -> T:
    """Return what *work* returns; in a LoopCall it runs in another thread."""
    call = loop_call()
    return work() if call is None else call.in_thread(work)


class PerLoop(Generic[T]):
    """One object for each event loop; those of closed loops are dropped when a new loop comes."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T:
        """Return the object of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._made.get(loop)
        if found is None:
            for closed in [known for known in list(self._made) if known.is_closed()]:
                self._made.pop(closed, None)
            found = self._made.setdefault(loop, self._make())
        return found


class Threads:
    """At most *limit* threads of each process run calls; further calls wait for one. Safe after fork."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run *work* in a thread, with a copy of the context of the caller."""
        pool = self._pools.get(os.getpid())
        if pool is None:
            made = ThreadPoolExecutor(self.limit, "redis-queue")
            pool = self._pools.setdefault(os.getpid(), made)
        return pool.submit(copy_context().run, work)


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


@contextlib.contextmanager
def signal_handler(handler: Callable[..., Any]) -> Iterator[None]:
    """Call *handler* on Ctrl-C and SIGTERM until the block ends."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
