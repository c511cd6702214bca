"""Timeouts of the connections to a Redis broker: kombu has none, and waits for a silent server for ever."""

from __future__ import annotations

import socket
from typing import Any, Final

from redis_queue.keeper import socket_timeout

LEAST: Final = 2.0
"""Seconds, however short the lease: a worker that closes its connection waits for a BRPOP of one second."""

PROBES: Final = 3
"""Unanswered TCP keepalive probes after which the system closes a connection."""


def add_timeouts(connection: Any, lease: float) -> None:
    """Let kombu's *connection* count a silent Redis as away within about a sixth of *lease* seconds.

    The transport options that are set already stay. No-op for other brokers. Call it before the connection is used.
    """
    if connection.get_transport_cls().driver_type != "redis":
        return
    timeout = max(LEAST, socket_timeout(lease))
    given: dict[str, Any] = connection.transport_options
    options = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "socket_keepalive": True,
        "socket_keepalive_options": _keepalive(timeout),
        # Of redis-py before a command, and of kombu while nothing comes; a silent one is found within two of them.
        "health_check_interval": timeout,
    }
    for name, value in options.items():
        given.setdefault(name, value)
    if isinstance(given.get("sentinel_kwargs"), dict):
        # Without these, redis-py asks the Sentinels with the timeouts of the primary.
        asked = {name: given[name] for name in options if name.startswith("socket_")}
        given["sentinel_kwargs"] = {**asked, **given["sentinel_kwargs"]}


def _keepalive(timeout: float) -> dict[int, int]:
    """Return the TCP options under which a connection ends after *timeout* seconds in which packets get lost."""
    seconds = max(1, round(timeout))
    values = {
        "TCP_KEEPIDLE": seconds,
        "TCP_KEEPINTVL": max(1, seconds // PROBES),
        "TCP_KEEPCNT": PROBES,
        "TCP_USER_TIMEOUT": 2 * seconds * 1000,
    }
    return {getattr(socket, name): value for name, value in values.items() if hasattr(socket, name)}
