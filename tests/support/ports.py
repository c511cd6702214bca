"""Free TCP ports on loopback."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
LOWEST_PORT, HIGHEST_PORT = 10_240, 22_000
"""Below the ephemeral ports: a client could otherwise get the port of a killed server before it restarts.

Low enough that a cluster bus port, 10000 higher, is below the ephemeral ports, too.
"""


def free_port() -> int:
    """Return a TCP port that was free a moment ago, low enough for a cluster bus 10000 above it.

    Another process may take it first: the caller must retry with another port if binding fails.
    """
    while True:
        port = random.randint(LOWEST_PORT, HIGHEST_PORT)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
