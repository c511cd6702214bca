"""Greeting: what a worker sends to its keeper first."""

from __future__ import annotations

import json
import pickle
import socket
from typing import Any, Final

import redis

from redis_queue.keeper.lines import LENGTH
from redis_queue.keeper.redis_py import LeaseIndex
from redis_queue.keeper.renewal import bounded_timeout
from redis_queue.store.script_files import load

_KINDS: Final = (redis.Connection, redis.SSLConnection, redis.UnixDomainSocketConnection)

_NAMES: Final = (
    "connection_class host port path db username password client_name max_connections retry_on_timeout "
    "health_check_interval socket_timeout socket_connect_timeout socket_keepalive socket_keepalive_options ssl_keyfile "
    "ssl_certfile ssl_cert_reqs ssl_ca_certs ssl_ca_path ssl_ca_data ssl_check_hostname ssl_password ssl_min_version "
    "ssl_ciphers"
)
_OPTIONS: Final = frozenset(_NAMES.split())
"""Options of redis-py that a keeper knows without redis-py."""


def pack(connection: Any, index: LeaseIndex) -> bytes:
    """Return the first input of a keeper: where the Redis of kombu's *connection* is, and the index of the leases.

    A connection that only redis-py can make (Sentinel, a credential provider, other classes) is sent as a pickle.
    Raises PicklingError, TypeError or AttributeError if that is impossible.
    """
    greeting: dict[str, Any] = {"lease": index.lease, "signature": index.signature}
    server = _server(connection.default_channel, index.lease)
    if server is None:
        greeting["pickle"] = pickle.dumps((connection, index)).hex()
    else:
        script = load("held/renew")
        greeting["server"] = server
        greeting["keys"] = [getattr(index, key).decode() for key in script.keys]
        greeting["script"] = {"sha": script.sha, "source": script.source, "arguments": script.arguments}
    data = json.dumps(greeting).encode()
    return LENGTH.pack(len(data)) + data


def _server(channel: Any, lease: float) -> dict[str, Any] | None:
    """Return how to connect to the Redis of kombu's *channel*; None if only redis-py can."""
    with channel.conn_or_acquire() as client:
        pool = client.connection_pool
    options = {name: value for name, value in channel._connparams().items() if value is not None}
    if type(pool) is not redis.ConnectionPool or pool.connection_class not in _KINDS or not _are_known(options):
        return None
    # It is not connected; redis-py has filled in its defaults.
    made: Any = pool.connection_class(**pool.connection_kwargs)
    host = getattr(made, "host", None) or ""
    return {
        "path": getattr(made, "path", None),
        "host": host if host.isascii() else host.encode("idna").decode(),
        "port": getattr(made, "port", None),
        "options": _socket_options(made),
        "timeout": bounded_timeout(options.get("socket_timeout"), lease),
        "connect_timeout": bounded_timeout(options.get("socket_connect_timeout"), lease),
        "login": _login(made),
        "tls": _tls(made) if isinstance(made, redis.SSLConnection) else None,
    }


def _are_known(options: dict[str, Any]) -> bool:
    keepalive = options.get("socket_keepalive_options", {}).values()
    plain = (value for name, value in options.items() if name not in ("connection_class", "socket_keepalive_options"))
    return (
        _OPTIONS.issuperset(options)
        and all(isinstance(value, str | int | float) for value in plain)
        and all(isinstance(value, int) for value in keepalive)
    )


def _socket_options(made: Any) -> list[tuple[int, int, int]]:
    if isinstance(made, redis.UnixDomainSocketConnection):
        return []
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    if made.socket_keepalive:
        options.append((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1))
        options += ((socket.IPPROTO_TCP, name, value) for name, value in made.socket_keepalive_options.items())
    return options


def _login(made: Any) -> list[tuple[str | int, ...]]:
    """Return the commands that redis-py sends on a new connection."""
    commands: list[tuple[str | int, ...]] = []
    if made.username or made.password:
        commands.append(("AUTH", *([made.username] if made.username else []), made.password or ""))
    if made.client_name:
        commands.append(("CLIENT", "SETNAME", made.client_name))
    if made.db:
        commands.append(("SELECT", made.db))
    return commands


def _tls(made: Any) -> dict[str, Any]:
    return {
        "check_hostname": bool(made.check_hostname),
        "cert_reqs": made.cert_reqs,
        "certfile": made.certfile,
        "keyfile": made.keyfile,
        "password": made.certificate_password,
        "cafile": made.ca_certs,
        "capath": made.ca_path,
        "cadata": made.ca_data,
        # Older redis-py does not have them.
        "min_version": getattr(made, "ssl_min_version", None),
        "ciphers": getattr(made, "ssl_ciphers", None),
    }
