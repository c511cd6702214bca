"""Connections of kombu to a Redis: the client of a channel, and timeouts, without which kombu waits forever."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, Final

import redis
from kombu.transport.redis import SentinelChannel
from redis.sentinel import SentinelConnectionPool, SentinelManagedSSLConnection

from redis_queue.keeper.renewal import RedisOptions, bounded_timeout, socket_timeout

MIN_TIMEOUT: Final = 2.0
"""Minimum timeout in seconds for a short lease: closing a connection waits for a BRPOP of one second."""

PROBES: Final = 3
"""Unanswered TCP keepalive probes after which the system closes a connection."""


def client_of(channel: Any) -> redis.Redis:
    """Return a client for the Redis of kombu's *channel*; kombu's own client adds its prefix to some keys only."""
    with channel.conn_or_acquire() as client:
        return redis.Redis(connection_pool=client.connection_pool)


def options_of(channel: Any, lease: float) -> RedisOptions:
    """Return how to connect to the Redis of kombu's *channel* without kombu, with timeouts for *lease* seconds."""
    options = {**channel._connparams(), **_timeouts(channel._connparams(), lease)}
    provider = options.get("credential_provider")
    if provider is not None and provider is not channel.connection.client.credential_provider:
        # kombu has made it from the name of its class. It may hold locks and sockets.
        options["credential_provider"] = type(provider)
    pool = client_of(channel).connection_pool
    if not isinstance(pool, SentinelConnectionPool):
        return RedisOptions(options)
    if options["connection_class"] is SentinelChannel.connection_class_ssl:
        # The same class, of a module that imports less.
        options["connection_class"] = SentinelManagedSSLConnection
    for name in ("host", "port"):
        options.pop(name, None)
    manager = pool.sentinel_manager
    nodes = (node.connection_pool.connection_kwargs for node in manager.sentinels)
    sentinel = {
        "sentinels": [(node["host"], node["port"]) for node in nodes],
        "min_other_sentinels": manager.min_other_sentinels,
        "sentinel_kwargs": {**manager.sentinel_kwargs, **_timeouts(manager.sentinel_kwargs, lease)},
    }
    return RedisOptions(options, sentinel, pool.service_name)


def _timeouts(options: Mapping[str, Any], lease: float) -> dict[str, float]:
    names = ("socket_timeout", "socket_connect_timeout")
    return {name: bounded_timeout(options.get(name), lease) for name in names}


def add_timeouts(connection: Any, lease: float) -> None:
    """Make kombu's *connection* fail within about a sixth of *lease* seconds if Redis does not answer.

    Existing options are kept. No-op for other brokers. Call it before the connection is used.
    """
    if connection.get_transport_cls().driver_type != "redis":
        return
    timeout = max(MIN_TIMEOUT, socket_timeout(lease))
    current: dict[str, Any] = connection.transport_options
    options = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "socket_keepalive": True,
        "socket_keepalive_options": _keepalive(timeout),
        # Used by redis-py before a command, and by kombu while idle; a dead connection is found within two intervals.
        "health_check_interval": timeout,
    }
    for name, value in options.items():
        current.setdefault(name, value)
    if isinstance(current.get("sentinel_kwargs"), dict):
        # If sentinel_kwargs are set, redis-py gives the timeouts of the primary to no Sentinel.
        timeouts = {name: current[name] for name in options if name.startswith("socket_")}
        current["sentinel_kwargs"] = {**timeouts, **current["sentinel_kwargs"]}


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
