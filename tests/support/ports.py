"""Free TCP ports on loopback."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
LOWEST_PORT, HIGHEST_PORT = 10_240, 22_000
"""Below those that the system gives to clients: else one takes the port of a server that is killed and starts again.

Low enough for a cluster bus 10000 above, and that is below them, too.
"""


def free_port() -> int:
    """Return a TCP port that nobody used a moment ago, low enough for a cluster bus 10000 above it.

    Somebody else may take it before the caller does: whoever binds it must be ready to ask again.
    """
    while True:
        port = random.randint(LOWEST_PORT, HIGHEST_PORT)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
