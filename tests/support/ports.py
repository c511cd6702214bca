"""Free TCP ports on loopback."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"
HIGHEST_PORT = 65535
CLUSTER_BUS_OFFSET = 10000


def free_port() -> int:
    """Return a TCP port that nobody used a moment ago, low enough for a cluster bus 10000 above it.

    Somebody else may take it before the caller does: whoever binds it must be ready to ask again.
    """
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
        if port + CLUSTER_BUS_OFFSET <= HIGHEST_PORT:
            return port
