"""Store: the Redis in which a Celery app keeps its queues."""

from __future__ import annotations

from copy import copy
from typing import Final

from celery import Celery

from redis_queue.catalog import Catalog
from redis_queue.celery.address import address_of
from redis_queue.celery.settings import CelerySettings, part_of
from redis_queue.delay.queue import DelayQueue
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.connection import Client, connect
from redis_queue.store.keys import FlowKeys
from redis_queue.store.scripts import Clock, server_clock
from redis_queue.store.settings import Settings

MAX_BODY: Final = 64 * 1024 * 1024
"""Largest message in bytes: a message that the broker accepts must not be refused for its delay alone."""


class Store:
    """The queues of *app*, by its configuration (see :class:`redis_queue.celery.settings.CelerySettings`).

    Without ``redis_queue_url`` they are in the broker, else in the result backend, if that is one Redis. Raises
    ConfigurationError if neither is, and for invalid settings.
    """

    def __init__(self, app: Celery) -> None:
        self.settings = CelerySettings.of(app)
        self.prefix = self.settings.prefix
        self.delay_queue_name = self.settings.delay_queue
        #: How the names of all keys in a Redis broker begin.
        self.broker_prefix = str((app.conf.broker_transport_options or {}).get("global_keyprefix") or "")
        #: The keys of its flows and unique tasks.
        self.flow_keys = FlowKeys(self.prefix, self.broker_prefix)
        self._target = address_of(app.conf)
        self.url = self._target.url
        self.client: Client = connect(self.url, check=False, **self._target.options)
        self.catalog = Catalog(self.client, prefix=self.prefix)
        #: The time of its queues.
        self.clock: Clock = server_clock

    def within(self, seconds: float) -> Store:
        """Return this store with another client, which waits up to *seconds* for each connection and each reply.

        Raises StoreError if the nodes of a Cluster cannot be read.
        """
        other = copy(self)
        timeouts = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        other.client = connect(self.url, check=False, **{**self._target.options, **timeouts})
        other.catalog = Catalog(other.client, prefix=self.prefix)
        return other

    @classmethod
    def of(cls, app: Celery) -> Store:
        """Return the store of *app*, created at the first call."""
        return part_of(app, cls, "store")

    def queue(self, name: str) -> RedisQueue:
        """Return the RedisQueue *name*."""
        return RedisQueue(name, self.client, prefix=self.prefix)

    def delay_queue(self) -> DelayQueue:
        """Return the DelayQueue whose entries are task calls."""
        known = self.catalog.find("delay", self.delay_queue_name)
        settings = Settings(
            prefix=self.prefix,
            lease=self.settings.dispatch_lease,
            max_deliveries=Settings().max_deliveries if known is None else known.max_deliveries,
            shards=self.settings.shards if known is None else known.shards,
            max_body=MAX_BODY,
        )
        return DelayQueue(self.delay_queue_name, self.client, settings=settings)
