"""Timeouts of connections to a Redis broker: kombu has none, and waits for ever if the server does not answer."""

from __future__ import annotations

import socket
from typing import Any, Final

from redis_queue.keeper import socket_timeout

LEAST: Final = 2.0
"""Least timeout in seconds, however short the lease: closing a connection waits for a BRPOP of one second."""

PROBES: Final = 3
"""Unanswered TCP keepalive probes after which the system closes a connection."""


def add_timeouts(connection: Any, lease: float) -> None:
    """Let kombu's *connection* fail within about a sixth of *lease* seconds if Redis does not answer.

    Options that are already set are kept. No-op for other brokers. Call it before the connection is used.
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
        # Used by redis-py before a command, and by kombu while idle; a dead connection is found within two intervals.
        "health_check_interval": timeout,
    }
    for name, value in options.items():
        given.setdefault(name, value)
    if isinstance(given.get("sentinel_kwargs"), dict):
        # Without these, redis-py uses the timeouts of the primary for the Sentinels.
        asked = {name: given[name] for name in options if name.startswith("socket_")}
        given["sentinel_kwargs"] = {**asked, **given["sentinel_kwargs"]}


def _keepalive(timeout: float) -> dict[int, int]:
    """Return TCP options that end a connection after *timeout* seconds of lost packets."""
    seconds = max(1, round(timeout))
    values = {
        "TCP_KEEPIDLE": seconds,
        "TCP_KEEPINTVL": max(1, seconds // PROBES),
        "TCP_KEEPCNT": PROBES,
        "TCP_USER_TIMEOUT": 2 * seconds * 1000,
    }
    return {getattr(socket, name): value for name, value in values.items() if hasattr(socket, name)}
