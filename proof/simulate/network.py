"""Sockets, pipes and polls of simulated processes, and the faults of their connections."""

from __future__ import annotations

import errno
import itertools
import math
import os
import select
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from proof.simulate.scheduler import SIM, Process, Task

FIRST: Final = 1 << 20
"""Numbers of descriptors from here on are simulated."""

LATENCY: Final = (0.00005, 0.002)
"""Seconds that bytes travel."""

OPEN: Final[dict[int, End]] = {}
"""Ends by their descriptors."""

_numbers = itertools.count(FIRST)


class Peer(Protocol):
    """What bytes of a connection reach."""

    def received(self, connection: Connection, data: bytes) -> None:
        """Take bytes."""

    def closed(self, connection: Connection) -> None:
        """Take note of the end of a connection."""


class End:
    """One end of a pipe, a pair or a connection: a socket, as far as redis-py and kombu use it."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        OPEN[self.number] = self
        self.process: Process | None = None if SIM.current is None else SIM.current.process
        self.timeout: float | None = None
        self.inbox = bytearray()
        self.ended = False
        self.error: OSError | None = None
        self.is_closed = False
        self.waiting: list[Task] = []
        self.other: End | None = None

    # What the other end does.

    def put(self, data: bytes) -> None:
        """Let *data* arrive."""
        self.inbox += data
        self.ring()

    def end(self, error: OSError | None = None) -> None:
        """Let the end of the data, or an *error*, arrive."""
        self.ended, self.error = True, error
        self.ring()

    def ring(self) -> None:
        """Wake those who wait for this end."""
        waiting, self.waiting = self.waiting, []
        for task in waiting:
            SIM.wake(task)

    @property
    def is_readable(self) -> bool:
        """Whether a read would not wait."""
        return bool(self.inbox) or self.ended

    # What its owner calls.

    def fileno(self) -> int:
        return -1 if self.is_closed else self.number

    def settimeout(self, seconds: float | None) -> None:
        self.timeout = seconds

    def gettimeout(self) -> float | None:
        return self.timeout

    def setblocking(self, flag: bool) -> None:
        self.timeout = None if flag else 0.0

    def setsockopt(self, *_: object) -> None:
        pass

    def getpeername(self) -> tuple[str, int]:
        return "redis", 6379

    getsockname = getpeername

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._await_data()
        if self.inbox:
            data = bytes(self.inbox[:size])
            if not flags & socket.MSG_PEEK:
                del self.inbox[:size]
            return data
        if self.error is not None:
            raise self.error
        return b""

    read = recv

    def recv_into(self, buffer: Any, size: int = 0) -> int:
        data = self.recv(size or len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _await_data(self) -> None:
        if self.is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        until = None if self.timeout is None else SIM.now + self.timeout
        while not self.is_readable:
            if self.timeout == 0:
                raise BlockingIOError(errno.EWOULDBLOCK, "nothing has arrived")
            assert SIM.current is not None
            self.waiting.append(SIM.current)
            if not SIM.wait(None if until is None else until - SIM.now) and not self.is_readable:
                raise TimeoutError("timed out")

    def send(self, data: bytes) -> int:
        if self.is_closed or self.other is None or self.other.is_closed:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        self.other.put(bytes(data))
        return len(data)

    def sendall(self, data: bytes) -> None:
        self.send(data)

    write = send

    def shutdown(self, _: int) -> None:
        pass

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            OPEN.pop(self.number, None)
            self.ring()
            if self.other is not None:
                self.other.end()

    def __enter__(self) -> End:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines that arrive."""
        rest = b""
        while data := self.recv(1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            yield from lines


def pair() -> tuple[End, End]:
    """Return two ends that are connected, without a network in between."""
    one, other = End(), End()
    one.other, other.other = other, one
    return one, other


class Connection(End):
    """A connection to a server over the network: in order, late, or not at all."""

    def __init__(self, server: Peer) -> None:
        super().__init__()
        self.server = server
        self.is_cut = False
        #: Until then nothing passes, in either direction.
        self.silent_until = 0.0
        #: Until then no reply passes.
        self.deaf_until = 0.0
        self._last_sent, self._last_replied = 0.0, 0.0
        self.state: Any = None
        if self.process is not None:
            self.process.at_exit.append(self.close)

    def send(self, data: bytes) -> int:
        if self.is_closed or self.is_cut:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        self._last_sent = self._arrival(self._last_sent)
        packet = bytes(data)
        SIM.at(self._last_sent, lambda: self._arrive(packet))
        return len(data)

    def reply(self, data: bytes) -> None:
        """Send *data* from the server."""
        if not self.is_cut:
            self._last_replied = self._arrival(self._last_replied)
            SIM.at(self._last_replied, lambda: self._deliver(data))

    def _arrival(self, last: float) -> float:
        return max(last, self.silent_until, SIM.now + SIM.rng.uniform(*LATENCY))

    def _arrive(self, packet: bytes) -> None:
        if self.silent_until > SIM.now:
            SIM.at(self.silent_until, lambda: self._arrive(packet))
        # What was on its way when the connection was cut may have got through, but nothing after it.
        elif not self.is_cut or (self.lucky and SIM.rng.random() < 0.5):
            self.server.received(self, packet)
        else:
            self.lucky = False

    def _deliver(self, data: bytes) -> None:
        if (until := max(self.silent_until, self.deaf_until)) > SIM.now:
            SIM.at(until, lambda: self._deliver(data))
        elif not self.is_closed and not self.is_cut:
            self.put(data)

    lucky = True

    def cut(self) -> None:
        """Break it: the owner sees a reset; bytes on their way may or may not arrive."""
        if not self.is_cut:
            self.is_cut = True
            self.server.closed(self)
            self.end(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def close(self) -> None:
        if not self.is_closed:
            super().close()
            # The end follows what was sent.
            SIM.at(max(self._last_sent, self.silent_until, SIM.now), lambda: self.server.closed(self))


class Poll:
    """Stand-in for select.poll."""

    def __init__(self) -> None:
        self._watched: dict[int, int] = {}

    def register(self, end: Any, events: int = select.POLLIN) -> None:
        self._watched[end if isinstance(end, int) else end.fileno()] = events

    def unregister(self, end: Any) -> None:
        del self._watched[end if isinstance(end, int) else end.fileno()]

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        seconds = None if timeout is None or timeout < 0 else math.ceil(timeout) / 1000
        return wait_for(self._events, lambda: self._watched, seconds)

    def _events(self) -> list[tuple[int, int]]:
        found = []
        for number, wanted in self._watched.items():
            end = OPEN.get(number)
            # A closed one is no longer in the poll, as with epoll.
            if end is not None:
                ready = (select.POLLIN if end.is_readable else 0) | select.POLLOUT
                if ready & wanted:
                    found.append((number, ready & wanted))
        return found


def wait_for(look: Callable[[], list[Any]], numbers: Callable[[], Iterable[int]], seconds: float | None) -> list[Any]:
    """Return what *look* finds, within *seconds*; it is called again when something happens to these descriptors."""
    until = None if seconds is None else SIM.now + seconds
    while not (found := look()):
        if seconds == 0 or SIM.current is None:
            return []
        ends = [OPEN[number] for number in numbers() if number in OPEN]
        for end in ends:
            end.waiting.append(SIM.current)
        woken = SIM.wait(None if until is None else until - SIM.now)
        for end in ends:
            if SIM.current in end.waiting:
                end.waiting.remove(SIM.current)
        if not woken:
            return look()
    return found


def _select(reads: Any, _: Any, __: Any, timeout: float | None = None) -> tuple[list[Any], list[Any], list[Any]]:
    """Stand in for select.select, of which only the descriptors to read are used."""
    if not reads:
        SIM.wait(timeout)
        return [], [], []
    return wait_for(lambda: [number for number in reads if OPEN[number].is_readable], lambda: reads, timeout), [], []


def install() -> None:
    """Replace select, socket pairs, and the calls on descriptors."""
    read, write, block = os.read, os.write, os.set_blocking
    os.read = lambda number, size: OPEN[number].recv(size) if number >= FIRST else read(number, size)
    os.write = lambda number, data: OPEN[number].send(bytes(data)) if number >= FIRST else write(number, data)
    os.set_blocking = lambda number, flag: None if number >= FIRST else block(number, flag)
    select.poll, select.select = Poll, _select  # type: ignore[assignment, misc]
    socket.socketpair = pair  # type: ignore[assignment]
