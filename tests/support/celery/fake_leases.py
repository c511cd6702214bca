"""A WorkerLeases without a keeper process, for tests in one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from redis_queue.celery.consume.fetch import Asked
from redis_queue.celery.consume.gates import GateKeys, Gates
from redis_queue.celery.consume.leases import WorkerLeases
from redis_queue.celery.consume.settlement import Settlement
from redis_queue.celery.kombu.keys import InFlightKeys
from redis_queue.store.keys import FlowKeys

DEFAULT: Final = InFlightKeys("unacked_index", "unacked", "redis_queue:lease_ends:unacked_index")


class MemoryCounters:
    """In-memory counters."""

    def __init__(self) -> None:
        self.amounts: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        self.amounts[name] += amount


class FakeLeases:
    """A WorkerLeases that renews nothing and never loses a lease."""

    def __init__(self, in_flight: InFlightKeys = DEFAULT) -> None:
        self.held: dict[str, float] = {}
        self.lease = in_flight.lease
        self.loop_has_ended = False
        self.gates = Gates(GateKeys(in_flight, FlowKeys("redis_queue")), lambda: self.processes - len(self.held))
        #: How many messages can run at once.
        self.processes = 1
        self.settlement = Settlement(self.gates.keys, self)
        self.lost: list[str] = []
        self.unread: list[Asked] = []
        self.settle_alone: Callable[[list[str]], list[bytes]] = lambda _: []
        self.aside: list[bytes] = []
        self.counters = MemoryCounters()

    settled_later = WorkerLeases.settled_later

    def hold(self, tag: str, since: float, score: float) -> None:
        self.hold_all([tag], since, score)

    def hold_all(self, tags: list[str], since: float, score: float) -> None:
        assert since > 0
        self.held.update(dict.fromkeys(tags, score))

    def drop(self, tag: str) -> None:
        self.release([tag], lost=[])

    def release(self, tags: list[str], *, lost: list[str]) -> None:
        for tag in tags:
            self.held.pop(tag, None)
        self.lost += lost

    @contextmanager
    def removal(self, tags: Collection[str]) -> Iterator[None]:
        """Drop *tags* after the block."""
        yield
        self.release(list(tags), lost=[])

    def holds(self, tag: str) -> bool:
        """Return whether *tag* was held and not dropped."""
        return tag in self.held

    def is_ours(self, tag: str) -> bool:
        """Return True: no lease is ever lost."""
        return bool(tag)

    def settle_waiting(self) -> None:
        """Settle what is to be settled, by a connection of its own."""
        self.settlement.settle_all(self.settle_alone)

    def put_aside(self, tag: str, item: bytes) -> None:
        """Record an unreadable item."""
        self.aside.append(item)
        self.drop(tag)
