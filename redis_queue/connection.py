"""URL to redis-py client, and what this Redis must be able to do.

Clients made here never repeat a command by themselves: redis-py re-sends a timed-out script up to ten times, and only
the caller knows whether that is safe. Calls that are safe to repeat are repeated in :mod:`redis_queue.scripts`.
"""

from __future__ import annotations

import inspect
import logging
import math
import re
from collections.abc import Callable, Container
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry
from redis.sentinel import Sentinel

from redis_queue.errors import (
    ConfigurationError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
    UnsupportedServerError,
    WrongTypeError,
)

logger = logging.getLogger(__name__)

Client = redis.Redis | redis.RedisCluster
"""What every queue works on; any redis-py client will do."""

RedisErrors: Final = (redis.RedisError, redis.exceptions.RedisClusterException, OSError)
"""What redis-py raises; its cluster error is no RedisError."""

MINIMUM_VERSION: Final = (6, 2)

_SOCKET_OPTIONS: Final[dict[str, Any]] = {
    "socket_timeout": 10.0,
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
}
# Redis before 7 wraps what a command in a script answers.
_WRAPPED = re.compile(r"^(?:Error running script \(call to f_\w+\): )?(?:@user_script: ?\d+: )+-?")
_CREDENTIALS = re.compile(r"(?<=//)(?:(?!://)\S)*@|(?<=password=)[^&\s]*")
_TYPES: Final[dict[str, Callable[[str], Any]]] = {
    "socket_timeout": float,
    "socket_connect_timeout": float,
    "health_check_interval": float,
    "max_connections": int,
    "db": int,
}


def connect(target: str | Client, *, check: bool = True, **options: Any) -> Client:
    """Return a redis-py client for *target*, a URL or a client that exists.

    URLs: ``redis://``, ``rediss://`` (TLS), ``unix://``, ``redis+sentinel://h1:p1,h2:p2/db?master_name=m`` (or
    Celery's ``sentinel://h1:p1;sentinel://h2:p2`` with ``master_name=``), ``redis+cluster://h1:p1,h2:p2``; with
    ``rediss+`` the last two use TLS. *options* go to redis-py and win over the URL. A client is returned as it is.

    With *check* the server is asked at once: raises StoreUnavailableError, StoreRefusedError (password, permission) or
    UnsupportedServerError (see :func:`check_server`). A bad URL raises ConfigurationError. No error names a password.
    """
    if isinstance(target, str):
        client = _from_url(target, options)
    elif options:
        raise ConfigurationError(f"options {', '.join(sorted(options))} go with a URL, not with a client")
    elif isinstance(target, redis.Redis | redis.RedisCluster):
        client = target
    else:
        raise ConfigurationError(f"connect({type(target).__name__}): give a Redis URL or a redis-py client")
    if check:
        check_server(client)
    return client


def redact(text: str) -> str:
    """Return *text* with the user and password of every URL in it replaced."""
    return _CREDENTIALS.sub(lambda found: "***@" if found[0].endswith("@") else "***", text)


def translate(error: Exception) -> StoreError:
    """Return the error of redis_queue for one of redis-py. The caller raises it ``from`` the original."""
    text = redact(_WRAPPED.sub("", str(error)))
    if text.startswith("WRONGTYPE"):
        return WrongTypeError(f"{WrongTypeError.__doc__} ({text})")
    for kinds, words, ours, meaning in _MEANINGS:
        if isinstance(error, kinds) or text.startswith(words):
            return ours(f"{meaning} ({text})")
    return StoreError(text)


_MEANINGS: Final[tuple[tuple[tuple[type[Exception], ...], tuple[str, ...], type[StoreError], str], ...]] = (
    (
        (redis.AuthenticationError, redis.exceptions.AuthorizationError),
        ("NOAUTH", "WRONGPASS"),
        StoreRefusedError,
        "Redis refused the login; check user and password",
    ),
    ((redis.ReadOnlyError,), ("READONLY",), StoreUnavailableError, "connected to a read-only replica"),
    (
        (redis.exceptions.NoPermissionError,),
        ("NOPERM", "The user executing the script", "ACL failure in script"),
        StoreRefusedError,
        "the Redis user lacks a permission",
    ),
    (
        (redis.exceptions.OutOfMemoryError,),
        ("OOM",),
        StoreRefusedError,
        "Redis is out of memory; nothing was changed",
    ),
    ((), ("MISCONF", "NOREPLICAS"), StoreRefusedError, "Redis refuses writes"),
    (
        (redis.BusyLoadingError,),
        ("LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "BUSY", "UNBLOCKED"),
        StoreUnavailableError,
        "Redis is not ready",
    ),
    (
        (redis.ConnectionError, redis.TimeoutError, redis.exceptions.RedisClusterException, OSError),
        (),
        StoreUnavailableError,
        "Redis cannot be reached or did not answer in time; whether the call took effect is unknown",
    ),
)


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


def _from_url(url: str, options: dict[str, Any]) -> Client:
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ConfigurationError("this is no URL; give for example redis://localhost:6379/0")
    make = _MAKERS.get(scheme)
    if make is None:
        raise ConfigurationError(f"scheme {scheme!r} is unknown; known are {', '.join(_MAKERS)}")
    try:
        return make(url, {"retry": Retry(NoBackoff(), 0), **options})
    except RedisErrors as error:
        raise translate(error) from error
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        # What redis-py and urllib say may quote a part of the URL, and that may be the password.
        raise ConfigurationError(f"cannot use this {scheme}:// URL: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    return f"unknown option {unknown[1]!r}" if unknown else "host, port, database or an option cannot be read"


def _standalone(url: str, options: dict[str, Any]) -> redis.Redis:
    if url.startswith("redis+socket://"):
        # What kombu calls a unix socket and its database.
        url = re.sub(r"(?<=[?&])virtual_host=", "db=", url.replace("redis+socket://", "unix://", 1))
    # Celery writes ssl_cert_reqs=CERT_REQUIRED where redis-py wants required.
    url = re.sub(r"(?<=ssl_cert_reqs=)CERT_(\w+)", lambda found: found[1].lower(), url)
    defaults = dict(_SOCKET_OPTIONS)
    if url.startswith("unix"):
        defaults.pop("socket_keepalive")
    client = redis.Redis.from_url(url, **{**defaults, **options})
    # Making a connection object, without connecting, checks the names of the options.
    client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)
    return client


def _sentinel(url: str, options: dict[str, Any]) -> redis.Redis:
    addresses = [_Address(part) for part in url.split(";") if part]
    for address in reversed(addresses):
        options = {**address.options, **options}
    nodes = [node for address in addresses for node in address.nodes]
    service = options.pop("service_name", None)
    master = options.pop("master_name", service)
    if not master:
        raise ConfigurationError("a Sentinel URL needs the name of the primary: add ?master_name=…")
    watcher_options = options.pop("sentinel_kwargs", {})
    options = {**_SOCKET_OPTIONS, **options}
    _check_options(options, {"max_connections", "check_connection"})
    for name in (*_SOCKET_OPTIONS, "retry"):
        watcher_options.setdefault(name, options[name])
    client: redis.Redis = Sentinel(nodes, sentinel_kwargs=watcher_options).master_for(
        master, **addresses[0].login, **options
    )
    return client


def _cluster(url: str, options: dict[str, Any]) -> redis.RedisCluster:
    address = _Address(url)
    options = {**_SOCKET_OPTIONS, **address.options, **options}
    if options.pop("db", 0):
        raise ConfigurationError("Redis Cluster has only database 0")
    _check_options(options, inspect.signature(redis.RedisCluster.__init__).parameters)
    nodes = [ClusterNode(host, port) for host, port in address.nodes]
    if redis.VERSION < (6,):
        options["cluster_error_retry_attempts"] = 0
    return redis.RedisCluster(startup_nodes=nodes, **address.login, **options)


_MAKERS: Final[dict[str, Callable[[str, dict[str, Any]], Client]]] = {
    "redis": _standalone,
    "rediss": _standalone,
    "unix": _standalone,
    "redis+sentinel": _sentinel,
    "rediss+sentinel": _sentinel,
    "sentinel": _sentinel,
    "redis+cluster": _cluster,
    "rediss+cluster": _cluster,
    "redis+socket": _standalone,
}


def _check_options(options: dict[str, Any], known: Container[str]) -> None:
    """Raise TypeError for an option that neither the client nor its connections take, before anything connects."""
    ours = {name: value for name, value in options.items() if name not in known}
    kind = redis.SSLConnection if ours.pop("ssl", False) else redis.Connection
    kind(**ours)


class _Address:
    """Hosts, login and options of a URL with several hosts."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        parts = urlsplit(f"//{rest}")
        login, _, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        port = 26379 if "sentinel" in scheme else 6379
        self.nodes = [_node(host, port) for host in hosts.split(",") if host]
        if not self.nodes:
            raise ConfigurationError(f"the {scheme}:// URL names no host")
        self.login: dict[str, Any] = {"username": unquote(user) or None, "password": unquote(password) or None}
        self.options: dict[str, Any] = {key: _TYPES.get(key, str)(value) for key, value in parse_qsl(parts.query)}
        if database := parts.path.strip("/"):
            self.options["db"] = int(database)
        if scheme.startswith("rediss"):
            self.options["ssl"] = True


def _node(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("no host")
    return parts.hostname, default_port if parts.port is None else parts.port
