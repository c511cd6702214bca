"""A private Redis for one benchmark, without other load."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from redis_queue.testing import OwnServer


@contextlib.contextmanager
def private_redis(*, port: int = 0) -> Iterator[str]:
    """Start a server for a ``with`` block and yield its URL: a unix socket, or *port* of 127.0.0.1."""
    with OwnServer("--port", str(port)) as server:
        yield f"redis://127.0.0.1:{port}/0" if port else f"unix://{server.socket}"
