"""The hash tags over which a DelayQueue is spread."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar, overload

import redis

from redis_queue.basics.logs import logger_of
from redis_queue.errors import ConfigurationError, StoreError, StoreUnavailableError
from redis_queue.model import DeadLetter, Entry, InFlight, Quarantined
from redis_queue.store.chunks import ANY_SIZE, CHUNK, check_budget, check_limit, check_offset
from redis_queue.store.connection import Client
from redis_queue.store.ids import id_bytes
from redis_queue.store.keys import Keys
from redis_queue.store.records import Clock, Records
from redis_queue.store.scripts import Scripts
from redis_queue.store.settings import Settings

logger = logger_of(__name__)

Found = TypeVar("Found")
Row = TypeVar("Row", DeadLetter, Quarantined, InFlight)

QUIET: Final = 10.0
"""Seconds between two warnings about the same verb: a dispatcher calls many times a second."""

#: The flags in a script's reply: refused, done, not possible now.
OUTCOMES: Final = {ord("0"): False, ord("1"): True, ord("2"): None}


class Shards(Sequence[Records]):
    """The shards of one DelayQueue. An id always belongs to the same one; a broken one does not block the others."""

    def __init__(self, name: str, client: Client, settings: Settings, clock: Clock) -> None:
        self.name = name
        self.client = client
        self.settings = settings
        self.scripts = Scripts(client)
        self._cluster = isinstance(client, redis.RedisCluster)
        self._shards = [
            Records(self.scripts, Keys(settings.prefix, "delay", name, number), settings, listed=False, clock=clock)
            for number in range(settings.shards)
        ]
        self._turn = 0
        self._warned_at: dict[str, float] = {}

    @overload
    def __getitem__(self, index: int) -> Records: ...

    @overload
    def __getitem__(self, index: slice) -> list[Records]: ...

    def __getitem__(self, index: int | slice) -> Records | list[Records]:
        return self._shards[index]

    def __len__(self) -> int:
        return len(self._shards)

    def of(self, id: str) -> Records:
        """Return the shard of *id*."""
        return self._shards[self._number(id)]

    def grouped(self, ids: Sequence[str]) -> Iterator[tuple[Records, list[int]]]:
        """Yield each shard of *ids* with the positions of its ids."""
        if ids and len(self._shards) == 1:
            yield self._shards[0], list(range(len(ids)))
            return
        groups: dict[int, list[int]] = {}
        for position, id_ in enumerate(ids):
            groups.setdefault(self._number(id_), []).append(position)
        for number, positions in groups.items():
            yield self._shards[number], positions

    def in_turn(self) -> list[Records]:
        """Return all shards; each call begins with another one, so that a busy shard cannot starve the rest."""
        self._turn += 1
        first = self._turn % len(self._shards)
        return [*self._shards[first:], *self._shards[:first]]

    def each(
        self, work: Callable[[Records], Found], shards: Iterable[Records] | None = None
    ) -> tuple[list[Found], Sequence[StoreError]]:
        """Return what *work* returns for each of *shards* (default: all), and the errors of broken ones.

        If all of them are on one server, its absence ends the loop: the others would only wait for it again.
        """
        found: list[Found] = []
        errors: list[StoreError] = []
        for shard in self._shards if shards is None else shards:
            try:
                found.append(work(shard))
            except StoreError as error:
                errors.append(error)
                if not self._cluster and isinstance(error, StoreUnavailableError):
                    break
        return found, errors

    def report(self, verb: str, errors: Sequence[StoreError], *, done: bool) -> None:
        """Raise the first of *errors*, if any; if something was *done* in spite of it, only log it."""
        if not errors:
            return
        if not done:
            raise errors[0]
        now = time.monotonic()
        if now - self._warned_at.get(verb, -math.inf) >= QUIET:
            self._warned_at[verb] = now
            logger.warning(
                "%s: cannot %s every shard: %s",
                self.name,
                verb,
                errors[0],
                extra={"action": "shard_failed", "broken": len(errors)},
            )

    def settle(
        self, entries: Sequence[Entry], call: Callable[[Records, Sequence[Entry]], Sequence[bool]]
    ) -> list[bool]:
        """Return the flags of *call*, which settles the entries of one shard, for each of *entries*.

        All shards are called; then the first error is raised.
        """
        flags, errors = self.try_settle(entries, call)
        self.report("settle in", errors, done=False)
        return flags

    def try_settle(
        self, entries: Sequence[Entry], call: Callable[[Records, Sequence[Entry]], Sequence[bool]]
    ) -> tuple[list[bool], Sequence[StoreError]]:
        """Settle as :meth:`settle` does; return the flags, False in a broken shard, and the errors."""
        flags = [False] * len(entries)
        groups = dict(self.grouped([entry.id for entry in entries]))

        def settle(shard: Records) -> None:
            group = groups[shard]
            for index, flag in zip(group, call(shard, [entries[index] for index in group]), strict=True):
                flags[index] = flag

        _, errors = self.each(settle, groups)
        return flags, errors

    def page(
        self,
        read: Callable[[Records, int, int], list[Row]],
        offset: int,
        limit: int,
        order: Callable[[Row], Any] | None = None,
    ) -> list[Row]:
        """Return a page of what *read* finds in all shards, in *order*; without an order, shard after shard."""
        check_offset(offset)
        check_limit(limit, CHUNK)
        if len(self._shards) == 1:
            return read(self._shards[0], offset, limit)
        found = [item for shard in self._shards for item in read(shard, 0, offset + limit)]
        if order is not None:
            found.sort(key=order)
        return found[offset : offset + limit]

    def share(self, max_bytes: int | None) -> int:
        """Return one shard's part of *max_bytes*."""
        budget = check_budget(max_bytes)
        return ANY_SIZE if budget is None else budget // len(self._shards)

    def check_one_server(self, verb: str) -> None:
        """Raise ConfigurationError on Redis Cluster."""
        if self._cluster:
            raise ConfigurationError(f"{verb} writes lists of other hash tags, which Redis Cluster forbids; use claim")

    def _number(self, id_: str) -> int:
        return zlib.crc32(id_bytes(id_)) % len(self._shards)
