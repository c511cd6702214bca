"""Connection of kombu to the Redis of the store, for workers whose broker is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import redis
from kombu.connection import Connection
from redis.sentinel import SentinelConnectionPool

from redis_queue.celery.kombu.connection import LEAST, add_timeouts
from redis_queue.celery.kombu.keys import LEASE_OPTION
from redis_queue.celery.store import Store
from redis_queue.keeper.renewal import socket_timeout

if TYPE_CHECKING:
    from celery import Celery

SWEEPS: Final = 6
"""Looks for expired leases per lease, at least."""

LONGEST_SWEEP: Final = 10.0
"""Most seconds between two such looks, the default of kombu."""


def gate_connection(app: Celery) -> Any:
    """Return an unopened connection of kombu to the store of *app*, with timeouts.

    Its messages in flight have keys of their own beside the flows, and are leased for ``redis_queue_task_lease``.
    """
    store = Store.of(app)
    lease = store.settings.task_lease_seconds
    client = store.client
    if not isinstance(client, redis.Redis):
        raise TypeError("the store is a Redis Cluster")
    given = client.connection_pool.connection_kwargs
    longest = max(LEAST, socket_timeout(lease))
    options: dict[str, Any] = {
        "global_keyprefix": store.flow_keys.taken,
        "visibility_timeout": lease,
        LEASE_OPTION: lease,
        "unacked_restore_interval": min(LONGEST_SWEEP, lease / SWEEPS),
        "socket_timeout": min(given.get("socket_timeout") or longest, longest),
        "socket_connect_timeout": min(given.get("socket_connect_timeout") or longest, longest),
    }
    if steps := (app.conf.broker_transport_options or {}).get("priority_steps"):
        options["priority_steps"] = steps
    connection = _connection(client, options)
    add_timeouts(connection, lease)
    return connection


def _connection(client: redis.Redis, options: dict[str, Any]) -> Any:
    pool = client.connection_pool
    given = pool.connection_kwargs
    make: Any = Connection  # kombu does not annotate it
    database = str(given.get("db") or 0)
    if "path" in given:
        names = ":".join(quote(given.get(name) or "", safe="") for name in ("username", "password"))
        address = f"redis+socket://{names}@" if names != ":" else "redis+socket://"
        return make(f"{address}{given['path']}?virtual_host={database}", transport_options=options)
    login = {
        "userid": given.get("username"),
        "password": given.get("password"),
        "virtual_host": database,
        "credential_provider": given.get("credential_provider"),
        "ssl": _tls(pool.connection_class, given),
    }
    if isinstance(pool, SentinelConnectionPool):
        watchers = [watcher.connection_pool.connection_kwargs for watcher in pool.sentinel_manager.sentinels]
        urls = [f"sentinel://{_host(known['host'])}:{known['port']}" for known in watchers]
        own = {name: value for name, value in pool.sentinel_manager.sentinel_kwargs.items() if name != "retry"}
        options |= {"master_name": pool.service_name, "sentinel_kwargs": own}
        return make(";".join(urls), transport_options=options, **login)
    host, port = given.get("host", "localhost"), given.get("port", 6379)
    return make(hostname=host, port=port, transport="redis", transport_options=options, **login)


def _tls(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any] | bool:
    if not issubclass(kind, redis.SSLConnection):
        return False
    return {name: value for name, value in given.items() if name.startswith("ssl_") and value is not None}


def _host(name: str) -> str:
    return f"[{name}]" if ":" in name else name
