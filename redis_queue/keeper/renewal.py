"""Renewer: renew the leases of a worker in its broker, from the worker or from its keeper; the times of leases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from redis_queue.errors import StoreError
from redis_queue.store.scripts import Scripts

DEFAULT_LEASE: Final = 60.0
"""Seconds for which a worker leases messages by default."""

RENEWALS: Final = 3
"""Renewals per lease."""

TIMEOUTS: Final = 6
"""Socket timeouts per lease: the lease must not expire before a renewal times out and is tried again."""

MAX_TIMEOUT: Final = 10.0
"""Longest socket timeout in seconds, for leases of any length."""

TAGS: Final = 2000
"""Maximum number of tags in one call."""


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """How redis-py connects to one Redis, in a form that another process can take.

    *pool* are the options of a connection pool; its credential provider may be a class. *sentinel* are the options of
    the Sentinels that know the address of the primary *service*, if there are any.
    """

    pool: Mapping[str, Any]
    sentinel: Mapping[str, Any] | None = None
    service: str = ""

    def client(self) -> redis.Redis:
        """Return a client that has not connected yet."""
        pool = dict(self.pool)
        if isinstance(provider := pool.get("credential_provider"), type):
            pool["credential_provider"] = provider()
        if self.sentinel is None:
            return redis.Redis(connection_pool=redis.ConnectionPool(**pool))
        # redis-py would ask a silent Sentinel several times.
        once = {**self.sentinel["sentinel_kwargs"], "retry": Retry(NoBackoff(), 0)}
        client: redis.Redis = Sentinel(**{**self.sentinel, "sentinel_kwargs": once}, **pool).master_for(self.service)
        return client


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


class Renewal(NamedTuple):
    """Result of one renewal: the new time, and the lost tags."""

    score: float
    lost: list[str]


class Renewer:
    """Renew leases of *index* in the Redis of *client*."""

    def __init__(self, client: redis.Redis, index: LeaseIndex) -> None:
        self._index = index
        self._script = Scripts(client).bind("broker/renew", index)

    def renew(self, held: Mapping[str, float]) -> Renewal:
        """Renew the leases of *held*, delivery tag -> last known time.

        A lease is lost if its time has changed (another worker has the message) or is gone (the message was settled).
        Raises RedisQueueError.
        """
        score, lost, items = 0.0, [], list(held.items())
        lease = max(1, round(self._index.lease * 1000))
        for start in range(0, len(items) or 1, TAGS):
            more = [item for tag, seen in items[start : start + TAGS] for item in (tag, f"{seen:.6f}")]
            reply = self._script(now=0, lease=lease, signature=self._index.signature, more=more)
            try:
                score = float(reply[0])
                lost += [tag.decode() for tag in reply[1:]]
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise StoreError(f"unexpected reply: {reply!r:.80}") from error
        return Renewal(score, lost)


def socket_timeout(lease: float) -> float:
    """Return the socket timeout for leases of *lease* seconds: a sixth, at most 10."""
    return min(lease / TIMEOUTS, MAX_TIMEOUT)


def bounded_timeout(seconds: float | None, lease: float) -> float:
    """Return the socket timeout *seconds* of a user, but not more than that for *lease*."""
    return min(seconds or MAX_TIMEOUT, socket_timeout(lease))
