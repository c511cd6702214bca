"""What stands in for time, threads, random numbers and processes of Python, before anything else is imported."""

from __future__ import annotations

import _thread
import datetime
import errno
import gc
import os
import queue
import random
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSet
from typing import Any, Final

from proof.simulate.scheduler import EPOCH, SIM, Task

PREEMPT: Final = 0.1
"""How often a thread that takes a free lock lets others go first."""


def now() -> float:
    """Return the time by the clock of the machine of the current process."""
    skew = SIM.current.process.machine.skew if SIM.current is not None else 0.0
    return EPOCH + SIM.now + skew


def monotonic() -> float:
    """Return the clock that stands still while the machine sleeps."""
    return SIM.now if SIM.current is None else SIM.current.process.machine.monotonic()


def since_boot(clock: int) -> float:
    """Stand in for clock_gettime."""
    return now() if clock == time.CLOCK_REALTIME else SIM.now if clock == time.CLOCK_BOOTTIME else monotonic()


def sleep(seconds: Any) -> None:
    """Stand in for time.sleep."""
    SIM.wait(seconds)


class Lock:
    """A lock, also one of an imported module, which a process that was killed no longer holds."""

    def __init__(self) -> None:
        self._holder: Task | bool | None = False
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        task = SIM.current
        if task is not None and SIM.rng.random() < PREEMPT:
            SIM.pause()
        until = SIM.now + timeout
        while self.locked():
            if not blocking:
                return False
            if task is None:
                raise RuntimeError("a deadlock outside of all processes")
            self._waiting.append(task)
            if not SIM.wait(None if timeout < 0 else until - SIM.now) and self.locked():
                if task in self._waiting:
                    self._waiting.remove(task)
                return False
        self._holder = task or True
        return True

    def release(self) -> None:
        if self._holder is False:
            raise RuntimeError("release unlocked lock")
        self._holder = False
        while self._waiting:
            task = self._waiting.popleft()
            if task.process.alive:
                SIM.wake(task)
                break

    def locked(self) -> bool:
        if isinstance(self._holder, Task) and not self._holder.process.alive:
            self._holder = False
        return self._holder is not False

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]


class Thread:
    """A thread of a simulated process."""

    def __init__(
        self,
        _: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name, self.daemon = name or "thread", bool(daemon)
        self._task: Task | None = None

    @property
    def ident(self) -> int | None:
        return None if self._task is None else self._task.number

    native_id = ident

    def start(self) -> None:
        assert SIM.current is not None, f"the thread {self.name} outside of a process"
        self._task = Task(SIM.current.process, self.run, self)

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def join(self, timeout: float | None = None) -> None:
        if self._task is not None and not self._task.done and SIM.current is not None:
            self._task.joins.append(SIM.current)
            SIM.wait(timeout)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def setDaemon(self, daemon: bool) -> None:  # noqa: N802 - its name
        self.daemon = daemon

    isDaemon = getName = None  # noqa: N815 - nobody may call them


_get, _set = object.__getattribute__, object.__setattr__


class Local:
    """Attributes of each thread."""

    __slots__ = ("__dict__", "__weakref__", "_made")

    def __new__(cls, *args: Any, **kwargs: Any) -> Local:
        self = object.__new__(cls)
        _set(self, "_made", (args, kwargs))
        _places()[id(self)] = self, _get(self, "__dict__")
        return self

    def __getattribute__(self, name: str) -> Any:
        _enter(self)
        return _get(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _enter(self)
        _set(self, name, value)

    def __delattr__(self, name: str) -> None:
        _enter(self)
        object.__delattr__(self, name)


def _enter(local: Local) -> None:
    places = _places()
    found = places.get(id(local))
    if found is None:
        attributes: dict[str, Any] = {}
        # It is kept as long as the thread, so that no other one has its number.
        places[id(local)] = local, attributes
        _set(local, "__dict__", attributes)
        args, kwargs = _get(local, "_made")
        type(local).__init__(local, *args, **kwargs)
    else:
        _set(local, "__dict__", found[1])


_outside: Final[dict[int, Any]] = {}


def _places() -> dict[int, Any]:
    return _outside if SIM.current is None else SIM.current.locals


_main = threading.main_thread()


def current_thread() -> Any:
    """Return the thread of the current task; the main thread of each process is that of Python."""
    return (SIM.current and SIM.current.thread) or _main


def get_ident() -> int:
    """Return the number of the current thread."""
    return 1 if SIM.current is None else SIM.current.number


def kill(pid: int, number: int) -> None:
    """Stand in for os.kill: only whether a process exists."""
    process = SIM.processes.get(pid)
    if process is None or not process.alive:
        raise ProcessLookupError(errno.ESRCH, "No such process")
    if number:
        process.kill(-number)


class Ordered(MutableSet[Any]):
    """A set in the order of its insertions: that of objects in a set depends on where they are in memory."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._items = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Any) -> None:
        self._items[item] = None

    def discard(self, item: Any) -> None:
        self._items.pop(item, None)

    def update(self, items: Iterable[Any]) -> None:
        self._items.update(dict.fromkeys(items))

    def copy(self) -> Ordered:
        return Ordered(self)

    union, intersection, difference = MutableSet.__or__, MutableSet.__and__, MutableSet.__sub__


class DateTime(datetime.datetime):
    """The time of the current process."""

    __slots__ = ()

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> DateTime:
        return cls.fromtimestamp(now(), tz)

    @classmethod
    def utcnow(cls) -> DateTime:
        return cls.fromtimestamp(now(), datetime.timezone.utc).replace(tzinfo=None)


def install() -> None:
    """Replace them. Modules that are imported later get them by whatever way they import."""
    late = [name for name in ("redis", "kombu", "celery", "redis_queue") if name in sys.modules]
    if late:
        raise RuntimeError(f"{late}: must not be imported before")
    import concurrent.futures.thread  # noqa: F401, PLC0415
    import logging  # noqa: F401, PLC0415 - its locks stay those of Python: nothing waits while it holds one

    time.time, time.monotonic, time.clock_gettime, time.sleep = now, monotonic, since_boot, sleep
    time.perf_counter, time.time_ns, time.monotonic_ns = (
        monotonic,
        lambda: int(now() * 1e9),
        lambda: int(monotonic() * 1e9),
    )
    threading._time = queue.time = monotonic  # type: ignore[attr-defined]
    os.urandom = random._urandom = random.randbytes  # type: ignore[attr-defined]
    os.getpid = lambda: 1 if SIM.current is None else SIM.current.process.pid
    os.kill = kill
    # A consumer in a main thread would take the signals of the simulator itself.
    signal.signal = lambda *_: signal.SIG_DFL
    socket.gethostname = lambda: "host" if SIM.current is None else SIM.current.process.machine.name
    threading.Lock = threading._allocate_lock = _thread.allocate_lock = Lock  # type: ignore[attr-defined, assignment]
    threading.RLock = threading._PyRLock  # type: ignore[attr-defined]
    threading.Thread, threading.local = Thread, Local  # type: ignore[misc, assignment]
    threading.current_thread = current_thread
    threading._active[1] = _main  # type: ignore[attr-defined]
    threading.get_ident = _thread.get_ident = get_ident
    queue.SimpleQueue = queue._PySimpleQueue  # type: ignore[attr-defined, misc]
    datetime.datetime = DateTime  # type: ignore[misc]
    # What it finds, and when, depends on where objects are in memory.
    gc.collect = lambda generation=2: 0 * generation
    del select.epoll
