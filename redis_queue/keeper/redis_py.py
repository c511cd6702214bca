"""Renew leases with redis-py: in a worker, and in a keeper whose connection only redis-py can make."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass

import redis

from redis_queue.errors import RedisQueueError
from redis_queue.keeper.renewal import Renewal, RenewalError, bounded_timeout, renew
from redis_queue.store.scripts import BoundScript, Scripts


@dataclass(frozen=True, slots=True)
class LeaseIndex:
    """The keys of the leases in a broker, and how long those of this worker are in seconds.

    *index* is the key ``unacked_index`` of kombu, *lease_ends* that of the ends of leases. *signature*, a number from 1
    to 999999, marks the renewals of this worker.
    """

    index: bytes
    lease_ends: bytes
    lease: float
    signature: int


class Renewer:
    """Renew leases of *index* in the Redis of *client*."""

    def __init__(self, client: redis.Redis, index: LeaseIndex) -> None:
        self._lease = index.lease
        self._signature = index.signature
        self._script: BoundScript = Scripts(client).bind("held/renew", index)

    def renew(self, held: Mapping[str, float]) -> Renewal:
        """Renew the leases of *held*, delivery tag -> last known time. Raises RedisQueueError."""
        return renew(self._script, self._lease, self._signature, held)


class KombuBroker:
    """The Redis of kombu's connection in a pickle, for a keeper."""

    def __init__(self, pickled: bytes) -> None:
        # Only the parent process can write to the pipe of a keeper.
        self._connection, self._index = pickle.loads(pickled)  # noqa: S301
        self._renewer: Renewer | None = None
        options = self._connection.transport_options
        for name in ("socket_timeout", "socket_connect_timeout"):
            options[name] = bounded_timeout(options.get(name), self._index.lease)

    def renew(self, held: Mapping[str, float]) -> Renewal:
        """Renew the leases of *held*, delivery tag -> last known time. Raises RenewalError."""
        try:
            if self._renewer is None:
                with self._connection.channel().conn_or_acquire() as client:
                    self._renewer = Renewer(redis.Redis(connection_pool=client.connection_pool), self._index)
            return self._renewer.renew(held)
        except (*self._connection.connection_errors, RedisQueueError, OSError) as error:
            raise RenewalError(str(error)) from error
