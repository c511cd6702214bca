"""Depth: how many messages a Celery queue holds, also those that wait for a place in a flow."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from celery import Celery

from redis_queue.admission.backlog import Backlog
from redis_queue.admission.flows import OF_QUEUE
from redis_queue.celery.store import Store
from redis_queue.errors import ConfigurationError, StoreError, StoreRefusedError, WrongTypeError
from redis_queue.store.scripts import Scripts

UNREADABLE: Final = (StoreRefusedError, WrongTypeError)
"""Errors of the keys of flows that must not hide the queues: their user may lack permission for them."""


@dataclass(frozen=True, slots=True)
class Depth:
    """Counts of one queue at the broker; None if the broker does not tell.

    *oldest_at* is when the oldest waiting message was sent, or was due if it was delayed: seconds since the epoch, by
    the clock of its producer. *waiting_for_place* counts those of the *ready* messages that wait for a place in a flow:
    they are not in the lists of the queue. *put_rate* counts messages put per second. *exists* is False if the broker
    does not know the queue.
    """

    ready: int | None = None
    in_flight: int | None = None
    consumers: int | None = None
    oldest_at: float | None = None
    exists: bool = True
    error: str = ""
    put_rate: float | None = None
    waiting_for_place: int = 0


class BrokerQueues:
    """Reads the queues of a broker; this class those of one that tells nothing."""

    def bound(self, known: Collection[str] = ()) -> set[str]:  # noqa: ARG002
        """Return the names of the queues that the broker knows; those of *known* queues may be left out."""
        return set()

    def depths(self, queues: Sequence[str]) -> list[Depth]:
        return [Depth() for _ in queues]

    def sizes(self, queues: Sequence[str]) -> tuple[list[int | None], int | None]:
        """Return how many messages wait in each queue, and how many are in flight in all; None if unknown."""
        return [None] * len(queues), None


class BacklogQueues(BrokerQueues):
    """Adds to the depths that *reader* reads from a broker the messages of *app* that wait for a place.

    If the store is away, they are not counted.
    """

    def __init__(self, app: Celery, reader: BrokerQueues) -> None:
        self._reader = reader
        store = Store.of(app)
        self._backlog = Backlog(Scripts(store.client), store.flow_keys)

    def bound(self, known: Collection[str] = ()) -> set[str]:
        """Return what the reader returns."""
        return self._reader.bound(known)

    def sizes(self, queues: Sequence[str]) -> tuple[list[int | None], int | None]:
        """Return how many messages wait in each queue, also for a place, and how many are in flight in all."""
        sizes, in_flight = self._reader.sizes(queues)
        waiting = self._waiting(queues)
        return [None if size is None else size + more for size, more in zip(sizes, waiting, strict=True)], in_flight

    def depths(self, queues: Sequence[str]) -> list[Depth]:
        found, counts = self._reader.depths(queues), self._waiting(queues)
        oldest: dict[str, float] = {}
        if any(counts):
            with contextlib.suppress(StoreError):
                oldest = self._backlog.oldest()
        return [
            _with_waiting(depth, count, oldest.get(f"{OF_QUEUE}{queue}")) if count else depth
            for queue, depth, count in zip(queues, found, counts, strict=True)
        ]

    def _waiting(self, queues: Sequence[str]) -> list[int]:
        with contextlib.suppress(StoreError):
            return self._backlog.of_queues(queues)
        return [0] * len(queues)


def readable_backlog(app: Celery, queue: str) -> Backlog | None:
    """Return the messages of *app* that wait for a place if there are some of *queue*, and its user may read them.

    An app without a store has no flows.
    """
    with contextlib.suppress(ConfigurationError, *UNREADABLE):
        store = Store.of(app)
        backlog = Backlog(Scripts(store.client), store.flow_keys, store.clock)
        if any(backlog.of_queues([queue])):
            return backlog
    return None


def purge_backlog(app: Celery, queue: str, limit: int) -> Iterator[int]:
    """Delete up to *limit* messages of *queue* that wait for a place; yield the number of each batch.

    No messages are deleted that :class:`BacklogQueues` does not count: those of an app without a store, or that its
    user may not read. Raises StoreError.
    """
    backlog = readable_backlog(app, queue)
    if backlog is not None:
        yield from backlog.purge(queue, limit)


def _with_waiting(depth: Depth, count: int, oldest_at: float | None) -> Depth:
    """Return *depth* with *count* messages that wait for a place, the oldest one since *oldest_at*."""
    times = [at for at in (depth.oldest_at, oldest_at) if at is not None]
    ready = (depth.ready or 0) + count
    return replace(depth, ready=ready, waiting_for_place=count, oldest_at=min(times, default=None))
