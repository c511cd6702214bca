"""Counters of lost leases and restored messages, kept in a Redis broker for all its workers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal

import redis

from redis_queue.basics.logs import logger_of
from redis_queue.celery.kombu.connection import client_of
from redis_queue.store.keys import BrokerKeys
from redis_queue.store.redis_errors import RedisErrors

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

Name = Literal["lost", "restored", "dead", "dropped"]

PATIENCE: Final = {"socket_timeout": 2.0, "socket_connect_timeout": 2.0}
"""Timeouts in seconds for a reader, so that a scrape ends."""

_READER: Final = "redis_queue_lease_counters"


@dataclass(frozen=True, slots=True)
class LeaseCounters:
    """Totals of all workers with TaskLeases since the broker's Redis was emptied.

    Best effort: a count that a worker could not write at once is missing.
    """

    #: Leases that a worker lost while it held the message: another worker may have run the task as well.
    lost: int = 0
    #: Messages that were returned to their queues because their leases had expired.
    restored: int = 0
    #: Tasks that killed their workers too often and are dead letters now.
    dead: int = 0
    #: Tasks that a worker did not start because another worker has them.
    dropped: int = 0


class Counters:
    """Counts in the Redis of a broker."""

    def __init__(self, client: redis.Redis, broker_prefix: str) -> None:
        self._client = client
        self._key = BrokerKeys(broker_prefix).counters

    @classmethod
    def of(cls, channel: Any) -> Counters:
        """Return the counters in the broker of kombu's *channel*."""
        return cls(client_of(channel), channel.global_keyprefix or "")

    def add(self, name: Name, amount: int = 1) -> None:
        """Count *amount* more; never raises."""
        try:
            self._client.hincrby(self._key, name, amount)
        except RedisErrors as error:
            logger.info("cannot count: %s", error, extra={"action": "count_failed"})

    def read(self) -> LeaseCounters:
        """Return the totals. Raises the errors of redis-py."""
        names = [item.name for item in fields(LeaseCounters)]
        reply: list[Any] = self._client.hmget(self._key, names)
        return LeaseCounters(*(int(raw) if raw is not None and bytes(raw).isdigit() else 0 for raw in reply))


def read(app: Celery) -> LeaseCounters | None:
    """Return the totals in the broker of *app*, or None if that is not Redis; one command.

    Raises the errors of kombu and redis-py if the broker is away.
    """
    found: Counters | None = vars(app).get(_READER)
    if found is None:
        with app.connection_for_read(transport_options=PATIENCE) as connection:
            if connection.transport.driver_type != "redis":
                return None
            # Not the default channel, which retries for as long as a worker would.
            found = Counters.of(connection.channel())
        setattr(app, _READER, found)
    return found.read()
