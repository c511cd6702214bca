"""A client for a URL, and what its Redis must be able to do.

Clients made here never repeat a command by themselves: redis-py re-sends a timed-out script up to ten times, and only
the caller knows whether that is safe. Calls that are safe to repeat are repeated in :mod:`redis_queue.store.scripts`.
"""

from __future__ import annotations

# Looked up by the first connect to a host name. A worker that forks while a thread is at that import leaves its child a
# half loaded module, and no connection ever: "unknown encoding: idna".
import encodings.idna  # noqa: F401
import math
import re
from typing import Any, Final

import redis

from redis_queue.errors import ConfigurationError, UnsupportedServerError
from redis_queue.logs import logger_of
from redis_queue.store.redis_errors import RedisErrors, translate
from redis_queue.store.urls import from_url

logger = logger_of(__name__)

Client = redis.Redis | redis.RedisCluster
"""What every queue works on; any redis-py client will do."""

MINIMUM_VERSION: Final = (6, 2)


def connect(target: str | Client, *, check: bool = True, **options: Any) -> Client:
    """Return a redis-py client for *target*, a URL or a client that exists.

    URLs: ``redis://``, ``rediss://`` (TLS), ``unix://``, ``redis+sentinel://h1:p1,h2:p2/db?master_name=m`` (or
    Celery's ``sentinel://h1:p1;sentinel://h2:p2`` with ``master_name=``), ``redis+cluster://h1:p1,h2:p2``; with
    ``rediss+`` the last two use TLS. *options* go to redis-py and win over the URL. The default timeouts
    are 5 s for a reply and 3 s for a connection. A client is returned as it is.

    With *check* the server is asked at once: raises StoreUnavailableError, StoreRefusedError (password, permission) or
    UnsupportedServerError (see :func:`check_server`). A bad URL raises ConfigurationError. No error names a password.
    """
    if isinstance(target, str):
        client = from_url(target, options)
    elif options:
        raise ConfigurationError(f"options {', '.join(sorted(options))} go with a URL, not with a client")
    elif isinstance(target, redis.Redis | redis.RedisCluster):
        client = target
    else:
        raise ConfigurationError(f"connect({type(target).__name__}): give a Redis URL or a redis-py client")
    if check:
        check_server(client)
    return client


def longest_wait(client: Client) -> float:
    """Return how many seconds a command may wait on the server before *client* gives up reading its reply."""
    if isinstance(client, redis.RedisCluster):
        timeout = client.get_connection_kwargs().get("socket_timeout")
    else:
        timeout = client.connection_pool.connection_kwargs.get("socket_timeout")
    return float(timeout) / 2 if timeout else math.inf


def check_server(client: Client) -> None:
    """Ask *client*'s server whether it can keep a queue.

    Raises UnsupportedServerError below Redis 6.2, for a read-only replica, and where ``maxmemory`` with an
    ``allkeys-*`` policy would evict queues without a word; StoreUnavailableError and StoreRefusedError as they come.
    Logs a warning of a ``volatile-*`` policy, which may evict locks.
    """
    for info in _infos(client):
        version = str(info.get("redis_version", "0"))
        if _version(version) < MINIMUM_VERSION:
            raise UnsupportedServerError(f"Redis {version} is too old: 6.2 or later is needed (any Valkey will do)")
        if info.get("role") == "slave":
            raise UnsupportedServerError("this server is a read-only replica; connect to its primary")
        policy = str(info.get("maxmemory_policy", ""))
        if policy.startswith("allkeys"):
            message = f"maxmemory-policy {policy} lets Redis drop queues; set it to noeviction"
            if int(info.get("maxmemory", 0)) > 0:
                raise UnsupportedServerError(message)
            logger.warning(message)
        elif policy.startswith("volatile"):
            # What keeps a lock or a repeated call safe has a TTL; a queue has none.
            logger.warning(
                "maxmemory-policy %s lets Redis drop locks that are held, and answers to repeated calls; set it to"
                " noeviction",
                policy,
            )


def _infos(client: Client) -> list[dict[str, Any]]:
    try:
        if isinstance(client, redis.RedisCluster):
            return [
                {key: value for part in ("server", "replication", "memory") for key, value in found[part].items()}
                for node in client.get_primaries()
                for found in [{part: client.info(part, target_nodes=node) for part in _PARTS}]
            ]
        found = {}
        for part in _PARTS:
            found.update(client.info(part))
    except RedisErrors as error:
        raise translate(error) from error
    return [found]


_PARTS: Final = ("server", "replication", "memory")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
