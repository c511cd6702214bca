"""Connect to Redis and check that the server is suitable.

Clients made here never repeat a command: redis-py would send a timed-out script up to ten times, and only the caller
knows whether that is safe. :mod:`redis_queue.store.scripts` repeats calls that are safe to repeat.
"""

from __future__ import annotations

# The first connect to a host name imports this codec. If a worker forks during that import, its child has half a module
# and can never connect: "unknown encoding: idna".
import encodings.idna  # noqa: F401
import math
import re
from collections import ChainMap
from typing import Any, Final

import redis

from redis_queue.basics.logs import logger_of
from redis_queue.errors import ConfigurationError, UnsupportedServerError
from redis_queue.store.redis_errors import RedisErrors, translate
from redis_queue.store.urls import from_url

logger = logger_of(__name__)

Client = redis.Redis | redis.RedisCluster
"""The clients that queues accept: any of redis-py, except asyncio."""

MINIMUM_VERSION: Final = (6, 2)


def connect(target: str | Client, *, check: bool = True, **options: Any) -> Client:
    """Return a redis-py client for *target*, a URL or an existing client.

    URLs: ``redis://``, ``rediss://`` (TLS), ``unix://``, ``redis+sentinel://h1:p1,h2:p2/db?master_name=m`` (or
    Celery's ``sentinel://h1:p1;sentinel://h2:p2`` with ``master_name=``), ``redis+cluster://h1:p1,h2:p2``; with
    ``rediss+`` the last two use TLS. *options* go to redis-py and override the URL. Default timeouts: 5 s for a reply,
    3 s for a connection. An existing client is returned unchanged.

    With *check*, the server is checked at once: raises StoreUnavailableError, StoreRefusedError (password, permission)
    or UnsupportedServerError (see :func:`check_server`). An invalid URL raises ConfigurationError. Errors never contain
    a password.
    """
    if isinstance(target, str):
        client = from_url(target, options)
    elif options:
        raise ConfigurationError(f"options {', '.join(sorted(options))}: must come with a URL, not with a client")
    elif isinstance(target, redis.Redis | redis.RedisCluster):
        client = target
    else:
        raise ConfigurationError(f"target: must be a Redis URL or a redis-py client, got {type(target).__name__}")
    if check:
        check_server(client)
    return client


def longest_wait(client: Client) -> float:
    """Return the seconds that a command may wait on the server before *client* stops waiting for its reply."""
    if isinstance(client, redis.RedisCluster):
        timeout = client.get_connection_kwargs().get("socket_timeout")
    else:
        timeout = client.connection_pool.connection_kwargs.get("socket_timeout")
    return float(timeout) / 2 if timeout else math.inf


def check_server(client: Client) -> None:
    """Check that *client*'s server can keep queues.

    Raises UnsupportedServerError for Redis older than 6.2, for a read-only replica, and if ``maxmemory`` with an
    ``allkeys-*`` policy could evict queues. Raises StoreUnavailableError and StoreRefusedError if the server does not
    answer. Logs a warning for a ``volatile-*`` policy, which may evict locks.
    """
    for info in _infos(client):
        version = str(info.get("redis_version", "0"))
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < MINIMUM_VERSION:
            raise UnsupportedServerError(f"redis_version={version}: must be 6.2 or later; any Valkey will do")
        if info.get("role") == "slave":
            raise UnsupportedServerError("role=slave: must not be a read-only replica; connect to its primary")
        policy = str(info.get("maxmemory_policy", ""))
        if policy.startswith("allkeys"):
            message = f"maxmemory-policy={policy}: must be noeviction; Redis may evict queues"
            if int(info.get("maxmemory", 0)) > 0:
                raise UnsupportedServerError(message)
            logger.warning(message, extra={"action": "store_unsafe"})
        elif policy.startswith("volatile"):
            # Locks and remembered outcomes have a TTL; queues have none.
            logger.warning(
                "maxmemory-policy=%s: must be noeviction; Redis may evict held locks and remembered outcomes",
                policy,
                extra={"action": "store_unsafe"},
            )


def _infos(client: Client) -> list[dict[str, Any]]:
    parts = ("server", "replication", "memory")
    try:
        nodes = client.get_primaries() if isinstance(client, redis.RedisCluster) else [None]
        targets: list[dict[str, Any]] = [{} if node is None else {"target_nodes": node} for node in nodes]
        return [dict(ChainMap(*(client.info(part, **target) for part in parts))) for target in targets]
    except RedisErrors as error:
        raise translate(error) from error
