"""The Redis of a run: that of the user, or a private one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from examples.orders.errors import FailedError, UnusableError
from redis_queue import RedisQueueError, connect
from redis_queue.basics.logs import hide_secrets
from redis_queue.testing import OwnServer
from redis_queue.testing.binaries import ServerNotFoundError
from redis_queue.testing.server import ServerStartError

SCHEMES = ("redis", "rediss", "unix")


def connect_to(url: str) -> redis.Redis:
    """Return a client of the user's Redis at *url*. Raises UnusableError."""
    if url.partition("://")[0] not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise UnusableError(f"REDIS_URL {hide_secrets(url)!r}: the worker needs one server as its broker, with {known}")
    try:
        client = connect(url)
    except RedisQueueError as error:
        raise UnusableError(f"REDIS_URL {hide_secrets(url)!r}: {error}") from error
    assert isinstance(client, redis.Redis)  # noqa: S101 - for the type checker
    return client


@contextmanager
def own_server() -> Iterator[str]:
    """Start a server for a ``with`` block and yield its URL. Raises UnusableError without a server, FailedError."""
    try:
        server = OwnServer()
        server.start()
    except ServerNotFoundError as error:
        raise UnusableError(f"{error}, or set REDIS_URL") from error
    except ServerStartError as error:
        raise FailedError(str(error)) from error
    try:
        yield server.url
    finally:
        server.stop()


def describe(client: redis.Redis) -> str:
    """Return name and version of the server."""
    about: dict[str, Any] = client.info("server")
    # Valkey also reports the version of Redis with which it is compatible.
    return f"Valkey {about['valkey_version']}" if "valkey_version" in about else f"Redis {about['redis_version']}"
