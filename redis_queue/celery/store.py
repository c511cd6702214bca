"""Where a Celery app keeps its queues: settings from ``app.conf``, one client for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode

from redis_queue.celery.settings import CelerySettings
from redis_queue.codec import JSON, Codec
from redis_queue.connection import Client, connect
from redis_queue.delay import DelayQueue
from redis_queue.errors import ConfigurationError
from redis_queue.inspector import Inspector
from redis_queue.keys import Kind
from redis_queue.queue import RedisQueue
from redis_queue.registry import Known
from redis_queue.settings import Settings
from redis_queue.urls import scheme_of

if TYPE_CHECKING:
    from celery import Celery

SCHEMES: Final = ("redis", "rediss", "unix", "sentinel")

MAX_BODY: Final = 64 * 1024 * 1024
"""Largest message in bytes: what a broker takes must not fail for the delay alone."""

CODEC: Final = Codec(JSON, MAX_BODY)
"""Writes what the DelayQueue of every store writes; what it refuses is known without asking Redis."""


class Store:
    """The queues of *app*, as its configuration says (see :class:`redis_queue.celery.settings.CelerySettings`).

    Without ``redis_queue_url`` they are in the broker, else in the result backend, if that is one Redis. Raises
    ConfigurationError where there is none, and for settings that cannot be.
    """

    def __init__(self, app: Celery) -> None:
        self.settings = CelerySettings.of(app)
        self.prefix = self.settings.prefix
        self.delay_queue_name = self.settings.delay_queue
        self.url = _target(app.conf)
        self.client: Client = connect(self.url, check=False)
        self.inspector = Inspector(self.client, prefix=self.prefix)

    @classmethod
    def of(cls, app: Celery) -> Store:
        """Return the store of *app*, made at its first use."""
        store: Store | None = app.__dict__.get("redis_queue_store")
        if store is None:
            store = app.__dict__["redis_queue_store"] = cls(app)
        return store

    def queue(self, name: str) -> RedisQueue:
        """Return the RedisQueue *name*."""
        return RedisQueue(name, self.client, prefix=self.prefix)

    def delay_queue(self) -> DelayQueue:
        """Return the DelayQueue whose entries are task calls."""
        return DelayQueue(self.delay_queue_name, self.client, settings=self._settings("delay", self.delay_queue_name))

    def known(self) -> list[Known]:
        """Return every queue that was ever written to under the prefix."""
        return self.inspector.known()

    def open(self, known: Known) -> RedisQueue | DelayQueue:
        """Return a queue from the registry, with the settings that it was written with."""
        return self.inspector.open(known)

    def _settings(self, kind: Kind, name: str) -> Settings:
        for known in self.known():
            if (known.kind, known.name) == (kind, name):
                return self._with(known.max_deliveries, known.shards)
        return self._with(Settings().max_deliveries, self.settings.shards)

    def _with(self, max_deliveries: int, shards: int) -> Settings:
        return Settings(
            prefix=self.prefix,
            visibility_timeout=self.settings.dispatch_lease,
            max_deliveries=max_deliveries,
            shards=shards,
            max_body=MAX_BODY,
        )


def _target(conf: Any) -> str:
    """Return the URL to use, with the name of the primary where it is a list of Sentinels."""
    for name, transport in _PLACES:
        value = getattr(conf, name, None) or ""
        url = value if isinstance(value, str) else _joined(name, value)
        scheme = url.partition("://")[0]
        if scheme.partition("+")[0] in SCHEMES and _is_one(url):
            master = (getattr(conf, transport, None) or {}).get("master_name")
            return _with_master(url, str(master)) if master and "sentinel" in scheme else url
        if name == "redis_queue_url" and url:
            raise ConfigurationError(f"redis_queue_url has the scheme {scheme_of(url)!r}: it must be one Redis")
    raise ConfigurationError("neither broker nor result backend is one Redis: set redis_queue_url")


_PLACES: Final = (
    ("redis_queue_url", "broker_transport_options"),
    ("broker_url", "broker_transport_options"),
    ("result_backend", "result_backend_transport_options"),
)


def _with_master(url: str, name: str) -> str:
    # Of several URLs, the options of the last one count.
    *others, last = url.rstrip(";").split(";")
    bare, _, query = last.partition("?")
    options = [(key, value) for key, value in parse_qsl(query) if key != "master_name"]
    return ";".join([*others, f"{bare}?{urlencode([*options, ('master_name', name)])}"])


def _joined(name: str, urls: Any) -> str:
    """Return a list of URLs as Celery writes it into one."""
    if isinstance(urls, list | tuple) and all(isinstance(url, str) for url in urls):
        return ";".join(urls)
    raise ConfigurationError(f"{name} is of type {type(urls).__name__}: give a URL, or a list of them")


def _is_one(url: str) -> bool:
    # A list of Sentinels is one Redis; several brokers are several, and which of them is meant cannot be known.
    return "sentinel" in url.partition("://")[0] or ";" not in url
