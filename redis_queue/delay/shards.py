"""Rounds: what is done on one shard after the other, so that a broken one keeps no other from it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import redis

from redis_queue.errors import StoreError, StoreUnavailableError
from redis_queue.logs import logger_of
from redis_queue.store.connection import Client
from redis_queue.store.records import Shard

logger = logger_of(__name__)

Found = TypeVar("Found")

QUIET: Final = 10.0
"""Seconds between two warnings about the same: a dispatcher goes round many times a second."""


class Rounds:
    """Goes over the shards of the queue *name*, which *client* reaches."""

    def __init__(self, name: str, client: Client) -> None:
        self._name = name
        self._one_server = not isinstance(client, redis.RedisCluster)
        self._told: dict[str, float] = {}

    def over(self, shards: Iterable[Shard], work: Callable[[Shard], Found]) -> tuple[list[Found], Sequence[StoreError]]:
        """Return what *work* returns for each of *shards*, and the errors of those that broke.

        Where all of them are on one server, its absence ends the round: the others would only wait for it again.
        """
        found: list[Found] = []
        errors: list[StoreError] = []
        for shard in shards:
            try:
                found.append(work(shard))
            except StoreError as error:
                errors.append(error)
                if self._one_server and isinstance(error, StoreUnavailableError):
                    break
        return found, errors

    def settle(self, verb: str, errors: Sequence[StoreError], *, done: bool) -> None:
        """Raise the first of *errors*, if there is any; where something was *done* in spite of it, only log it."""
        if not errors:
            return
        if not done:
            raise errors[0]
        now = time.monotonic()
        if now - self._told.get(verb, -math.inf) >= QUIET:
            self._told[verb] = now
            logger.warning(
                "%s: cannot %s every shard: %s",
                self._name,
                verb,
                errors[0],
                extra={"action": "shard_failed", "broken": len(errors)},
            )
