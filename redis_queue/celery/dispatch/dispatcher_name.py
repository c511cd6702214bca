"""Names of dispatchers: host and process id, so that others can check whether the process still exists."""

from __future__ import annotations

import os
import random
import re
import socket
from typing import Final

_NAME: Final = re.compile(r"(?:\w+@)?(.+):(\d{1,9}):[0-9a-f]{8}")

_own: Final[set[str]] = set()


def new_name(kind: str = "") -> str:
    """Return a new name for a dispatcher of this process; it begins with *kind*."""
    name = f"{kind}{socket.gethostname()}:{os.getpid()}:{random.getrandbits(32):08x}"
    _own.add(name)
    return name


def has_ended(name: str) -> bool:
    """Tell whether *name* belongs to a process of this host that no longer exists.

    Containers that share a host name but no processes may be wrong about each other.
    """
    found = _NAME.fullmatch(name)
    if found is None or found[1] != socket.gethostname():
        return False
    pid = int(found[2])
    if pid == os.getpid():
        # In a restarted container this process may have the process id of its predecessor.
        return name not in _own
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        # It belongs to another user.
        return False
    return False
