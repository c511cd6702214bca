"""A TCP proxy that delays all bytes: ``python -m benchmarks.worker.proxy LISTEN TARGET SECONDS READY``.

Listens on the port LISTEN of 127.0.0.1 and forwards to the port TARGET. All bytes arrive SECONDS later, in order, on
all connections at the same time. Creates the file READY when it listens.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import redis

from benchmarks.children import child, wait_for_file
from benchmarks.server import HOST, free_port

CHUNK = 1 << 18
TIMEOUT = 5.0
PINGS = 100


@contextlib.contextmanager
def delayed(target: int, seconds: float) -> Iterator[int]:
    """Run a proxy in front of the port *target* for a ``with`` block; yield its port."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        log, ready = Path(folder) / "log", Path(folder) / "ready"
        numbers = (str(port), str(target), str(seconds))
        with child([sys.executable, "-m", "benchmarks.worker.proxy", *numbers, str(ready)], log, {}) as process:
            wait_for_file(ready, process, log)
            yield port


def round_trip(port: int) -> float:
    """Return the seconds in which the Redis behind *port* answers a PING (median)."""
    with redis.Redis(HOST, port) as client:
        client.ping()
        taken = []
        for _ in range(PINGS):
            started = time.perf_counter()
            client.ping()
            taken.append(time.perf_counter() - started)
        return median(taken)


class DelayingProxy:
    """Forwards all connections of *listener* to the port *target* after *seconds*, in one thread.

    It uses select(), whose timeout has microseconds; that of epoll is rounded up to milliseconds.
    """

    def __init__(self, listener: socket.socket, target: int, seconds: float) -> None:
        self._listener = listener
        self._target = target
        self._seconds = seconds
        self._peers: dict[socket.socket, socket.socket] = {}
        #: When to send what to whom; no bytes mean the end. In order, because all wait equally long.
        self._delayed: deque[tuple[float, socket.socket, bytes]] = deque()
        #: What a receiver has not accepted yet; its sender is not read meanwhile.
        self._blocked: dict[socket.socket, bytes] = {}

    def run(self) -> None:
        """Forward forever."""
        while True:
            timeout = max(0.0, self._delayed[0][0] - time.monotonic()) if self._delayed else None
            sources = [source for source, peer in self._peers.items() if peer not in self._blocked]
            readable, writable, _ = select.select([self._listener, *sources], list(self._blocked), [], timeout)
            for receiver in writable:
                self._send(receiver, self._blocked.pop(receiver))
            for source in readable:
                if source is self._listener:
                    self._accept()
                else:
                    self._read(source)
            while self._delayed and self._delayed[0][0] <= time.monotonic():
                _, receiver, part = self._delayed.popleft()
                self._send(receiver, self._blocked.pop(receiver, b"") + part) if part else self._close(receiver)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection((HOST, self._target), timeout=TIMEOUT)
        for one, other in ((client, server), (server, client)):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[one] = other

    def _read(self, source: socket.socket) -> None:
        try:
            part = source.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        peer = self._peers[source] if part else self._peers.pop(source)
        self._delayed.append((time.monotonic() + self._seconds, peer, part))

    def _send(self, receiver: socket.socket, part: bytes) -> None:
        try:
            sent = receiver.send(part)
        except BlockingIOError:
            sent = 0
        except OSError:
            return
        if sent < len(part):
            self._blocked[receiver] = part[sent:]

    def _close(self, receiver: socket.socket) -> None:
        """Close both directions: Redis and its clients do not use half of a connection."""
        peer = self._peers.pop(receiver, None)
        self._blocked.pop(receiver, None)
        receiver.close()
        if peer is not None:
            self._blocked.pop(peer, None)
            peer.close()


def main(listen: str, target: str, seconds: str, ready: str) -> None:
    """Listen and forward until killed."""
    with socket.create_server((HOST, int(listen)), backlog=1024) as listener:
        Path(ready).touch()
        DelayingProxy(listener, int(target), float(seconds)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
