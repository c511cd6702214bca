"""A private Redis for one benchmark, without other load."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from redis_queue.testing import OwnServer

HOST = "127.0.0.1"


@contextlib.contextmanager
def private_redis(*, tcp: bool = False) -> Iterator[str]:
    """Start a server for a ``with`` block and yield its URL: a unix socket, or with *tcp* a port of 127.0.0.1."""
    port = free_port() if tcp else 0
    with OwnServer("--port", str(port)) as server:
        yield f"redis://{HOST}:{port}/0" if tcp else f"unix://{server.socket}"


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
