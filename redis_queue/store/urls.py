"""Make a redis-py client from a URL: one server, a Sentinel set or a Cluster, over TCP, TLS or a Unix socket."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.connection import URL_QUERY_ARGUMENT_PARSERS, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from redis_queue.errors import ConfigurationError
from redis_queue.store.redis_errors import RedisErrors, translate

_SOCKET_OPTIONS: Final[dict[str, Any]] = {
    "socket_timeout": 5.0,
    "socket_connect_timeout": 3.0,
    "socket_keepalive": True,
}


def scheme_of(url: str) -> str:
    """Return the scheme of *url*, "" if it has none; never another part, which may be a password."""
    found = _SCHEME.match(url)
    return found[1] if found else ""


_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]{0,30})://", re.IGNORECASE)


def from_url(url: str, options: dict[str, Any]) -> redis.Redis | redis.RedisCluster:
    """Return the client for *url* and *options*. Raises ConfigurationError."""
    scheme = scheme_of(url)
    if not scheme:
        raise ConfigurationError("url: must be a URL, for example redis://localhost:6379/0")
    make = _MAKERS.get(scheme)
    if make is None:
        raise ConfigurationError(f"url scheme={scheme!r}: must be one of {', '.join(_MAKERS)}")
    for name, _ in parse_qsl(url.partition("?")[2]):
        if name in _NO_TEXT:
            raise ConfigurationError(f"url option {name}: must be passed to connect() by keyword")
    try:
        return make(url, {"retry": Retry(NoBackoff(), 0), **options})
    except (TypeError, ValueError, *RedisErrors) as error:
        if isinstance(error, ConfigurationError):
            raise
        # A plain RedisError is about an option for TLS.
        if isinstance(error, RedisErrors) and type(error) is not redis.RedisError:
            raise translate(error) from error
        # redis-py and urllib may quote a part of the URL, and that may be the password.
        raise ConfigurationError(f"invalid {scheme}:// URL: {_reason(error)}") from None


def url_of(client: redis.Redis | redis.RedisCluster) -> str:
    """Return the URL of *client* without user, password and options."""
    if isinstance(client, redis.RedisCluster):
        nodes = [(node.host, node.port) for node in client.nodes_manager.startup_nodes.values()]
        return f"redis+cluster://{_hosts(nodes)}"
    pool = client.connection_pool
    options = pool.connection_kwargs
    database = options.get("db") or 0
    if "path" in options:
        return f"unix://{options['path']}{f'?db={database}' if database else ''}"
    scheme = "rediss" if issubclass(pool.connection_class, redis.SSLConnection) else "redis"
    if isinstance(pool, SentinelConnectionPool):
        watchers = [watcher.connection_pool.connection_kwargs for watcher in pool.sentinel_manager.sentinels]
        hosts = _hosts([(str(known.get("host")), int(known.get("port", 0))) for known in watchers])
        return f"{scheme}+sentinel://{hosts}/{database}?master_name={pool.service_name}"
    return f"{scheme}://{_hosts([(options.get('host', 'localhost'), options.get('port', 6379))])}/{database}"


def _hosts(nodes: Sequence[tuple[str, int]]) -> str:
    known = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in nodes]
    return ",".join([*known[:MAX_HOSTS], *(["..."] if known[MAX_HOSTS:] else [])])


MAX_HOSTS: Final = 3
"""Maximum number of hosts in a URL."""

_NO_TEXT: Final = ("credential_provider", "sentinel_kwargs")
"""Options that are objects, not text."""


def _reason(error: Exception) -> str:
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    return f"unknown option {unknown[1]!r}" if unknown else "host, port, database or an option is malformed"


def _standalone(url: str, options: dict[str, Any]) -> redis.Redis:
    if url.startswith("redis+socket://"):
        # kombu's URL for a Unix socket, and its name for the database.
        url = re.sub(r"(?<=[?&])virtual_host=", "db=", url.replace("redis+socket://", "unix://", 1))
    # Celery writes ssl_cert_reqs=CERT_REQUIRED, redis-py expects required.
    url = re.sub(r"(?<=ssl_cert_reqs=)CERT_(\w+)", lambda found: found[1].lower(), url)
    defaults = dict(_SOCKET_OPTIONS)
    if url.startswith("unix"):
        defaults.pop("socket_keepalive")
    # In redis-py alone, the URL would override the options.
    found = parse_url(url)
    client = redis.Redis.from_pool(redis.ConnectionPool(**{**defaults, **_without_login(found, options), **options}))
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
        raise ConfigurationError("url option master_name: must be the name of the primary; add ?master_name=…")
    watcher_options = dict(options.pop("sentinel_kwargs", {}))
    options = {**_SOCKET_OPTIONS, **options}
    _check_options(options, {"max_connections", "check_connection"})
    for name in (*_SOCKET_OPTIONS, "retry"):
        watcher_options.setdefault(name, options[name])
    client: redis.Redis = Sentinel(nodes, sentinel_kwargs=watcher_options).master_for(
        master, **{**_without_login(addresses[0].login, options), **options}
    )
    return client


def _cluster(url: str, options: dict[str, Any]) -> redis.RedisCluster:
    address = _Address(url)
    options = {**_SOCKET_OPTIONS, **address.options, **options}
    if options.pop("db", 0):
        raise ConfigurationError("db: must be 0 with Redis Cluster")
    _check_options(options, inspect.signature(redis.RedisCluster.__init__).parameters)
    nodes = [ClusterNode(host, port) for host, port in address.nodes]
    if redis.VERSION < (6,):
        options["cluster_error_retry_attempts"] = 0
    return redis.RedisCluster(startup_nodes=nodes, **{**_without_login(address.login, options), **options})


_MAKERS: Final[dict[str, Callable[[str, dict[str, Any]], redis.Redis | redis.RedisCluster]]] = {
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


def _without_login(found: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options *found* in a URL, without its login if *options* have one: redis-py refuses both."""
    left_out = ("username", "password") if options.get("credential_provider") else ()
    return {name: value for name, value in found.items() if name not in left_out}


def _check_options(options: dict[str, Any], known: Container[str]) -> None:
    """Raise TypeError for an option that neither the client nor its connections know, before anything connects."""
    ours = {name: value for name, value in options.items() if name not in known}
    kind = redis.SSLConnection if ours.pop("ssl", False) else redis.Connection
    kind(**ours)


class _Address:
    """Hosts, login and options of a URL with several hosts."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        # urlsplit accepts the brackets of an IPv6 address only around a whole host.
        authority = re.split("[/?#]", rest, maxsplit=1)[0]
        parts = urlsplit(f"//hosts{rest.removeprefix(authority)}")
        login, _, hosts = authority.rpartition("@")
        user, _, password = login.partition(":")
        port = 26379 if "sentinel" in scheme else 6379
        self.nodes = [_node(host, port) for host in hosts.split(",") if host]
        if not self.nodes:
            raise ConfigurationError(f"{scheme}:// URL: must contain a host")
        self.login: dict[str, Any] = {"username": unquote(user) or None, "password": unquote(password) or None}
        parsers: Mapping[str, Any] = URL_QUERY_ARGUMENT_PARSERS
        self.options: dict[str, Any] = {key: parsers.get(key, str)(value) for key, value in parse_qsl(parts.query)}
        if database := parts.path.strip("/"):
            self.options["db"] = int(database)
        if scheme.startswith("rediss"):
            self.options["ssl"] = True


def _node(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("no host")
    return parts.hostname, default_port if parts.port is None else parts.port
