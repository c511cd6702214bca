"""Inspector: counts of every queue under one prefix."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from redis_queue.admission.flows import Flows
from redis_queue.admission.owners import Owners
from redis_queue.basics.times import from_ms
from redis_queue.catalog import AnyQueue, Catalog, kind_of
from redis_queue.monitor.monitor import Monitor
from redis_queue.operate.queue_row import BROKEN, TOTALS, Overview, QueueRow, fault_text
from redis_queue.store.connection import Client
from redis_queue.store.keys import Keys, Kind
from redis_queue.store.registry import RegistryRow
from redis_queue.store.scripts import BatchCall, Clock, Scripts, now_ms, pairs, server_clock
from redis_queue.store.settings import Settings

MAX_SHARDS: Final = 2048
"""Maximum number of shards that one call counts, apart from small queues (:data:`FEW_SHARDS`)."""

FEW_SHARDS: Final = 16
"""A queue with at most this many shards is always counted."""


class Inspector:
    """Counts the queues under *prefix*; it changes nothing.

    *redis* is a URL or a redis-py client. :attr:`catalog` finds and opens the queues, :attr:`monitor` reads the reports
    of workers, :attr:`flows` the limits of queues and tasks, and :attr:`unique` the keys of unique tasks. Raises
    ConfigurationError for an invalid prefix, and StoreUnavailableError if the Redis of a URL cannot be reached.
    """

    def __init__(self, redis: str | Client, *, prefix: str = "redis_queue", clock: Clock = server_clock) -> None:
        self.catalog = Catalog(redis, prefix=prefix, clock=clock)
        self.monitor = Monitor(self.catalog.client, prefix, clock)
        self.flows = Flows(self.catalog.client, prefix)
        self.unique = Owners(self.catalog.client, prefix, clock=clock)
        self._scripts = Scripts(self.catalog.client)

    def queues(self, known: Iterable[RegistryRow] | None = None) -> list[QueueRow]:
        """Return one row for each queue of *known* (default: all queues), by kind and name; O(1) for each shard.

        The queues are counted up to :data:`MAX_SHARDS` shards in all. A larger queue after that is not counted, and
        its row has an *error*; those with at most :data:`FEW_SHARDS` shards are always counted.
        """
        rows = list(self.catalog.known() if known is None else known)
        looks: list[list[BatchCall] | str] = []
        left = MAX_SHARDS
        for row in rows:
            looks.append(self._looks(row, left))
            left -= row.shards if row.kind == "delay" and isinstance(looks[-1], list) else 0
        replies = iter(self._scripts.each([call for look in looks if isinstance(look, list) for call in look]))
        found = [
            QueueRow(row.kind, row.name, error=look) if isinstance(look, str) else self._row(row, look, replies)
            for row, look in zip(rows, looks, strict=True)
        ]
        return self._with_first_due(found)

    def overview(self, known: Iterable[RegistryRow] | None = None) -> Overview:
        """Return the rows of :meth:`queues`, with the time at which they were read."""
        return Overview(self.now(), self.queues(known))

    def now(self) -> datetime:
        """Return the server's time."""
        return from_ms(now_ms(self._scripts, self.catalog.clock))

    def expired(self, queue: AnyQueue) -> int:
        """Count the expired leases of *queue*, which the next put-back would end."""
        now = now_ms(self._scripts, self.catalog.clock)
        shards = self._keys(kind_of(queue), queue.name, queue.settings.shards)
        return sum(int(self._scripts.command("ZCOUNT", keys.in_flight, "-inf", now)) for keys in shards)

    def _looks(self, known: RegistryRow, left: int) -> list[BatchCall] | str:
        """Return the calls that count a queue; an error text if it is broken or has more shards than *left*."""
        try:
            Settings(prefix=self.catalog.prefix, max_deliveries=known.max_deliveries, shards=known.shards)
            shards = self._keys(known.kind, known.name, known.shards)
        except BROKEN as error:
            # One broken queue must not hide the others.
            return fault_text(error)
        if known.kind == "queue":
            return [self._scripts.bind("queue/stats", shards[0]).batch_call()]
        if known.shards > max(left, FEW_SHARDS):
            return f"not counted: {known.shards:,} shards are too many for this list; open the page of the queue"
        now = self.catalog.clock()
        stats = [self._scripts.bind("delay/stats", keys).batch_call(now=now) for keys in shards]
        totals = [self._scripts.read_call("HMGET", keys.meta, *TOTALS) for keys in shards]
        return [*stats, *totals, self._scripts.read_call("HGET", shards[0].lateness, "sent")]

    def _row(self, known: RegistryRow, looks: Sequence[BatchCall], replies: Iterator[Callable[[], Any]]) -> QueueRow:
        mine = list(itertools.islice(replies, len(looks)))
        try:
            if known.kind == "queue":
                return QueueRow.of_queue(known.name, mine[0]())
            *counts, dispatched = mine
            return QueueRow.of_delay(known.name, [reply() for reply in counts], _number(dispatched))
        except BROKEN as error:
            return QueueRow(known.kind, known.name, error=fault_text(error))

    def _with_first_due(self, rows: Sequence[QueueRow]) -> list[QueueRow]:
        """Return *rows*; those of a RedisQueue with delayed messages get its next due time."""
        numbers = [number for number, row in enumerate(rows) if row.kind == "queue" and row.delayed]
        keys = [self._keys("queue", rows[number].name, 1)[0].waiting for number in numbers]
        replies = self._scripts.each([self._scripts.read_call("ZRANGE", key, 0, 0, "WITHSCORES") for key in keys])
        found = list(rows)
        for number, reply in zip(numbers, replies, strict=True):
            try:
                due = [from_ms(float(score)) for _, score in pairs(reply())]
                found[number] = replace(found[number], next_due=due[0] if due else None)
            except BROKEN as error:
                found[number] = QueueRow("queue", found[number].name, error=fault_text(error))
        return found

    def _keys(self, kind: Kind, name: str, shards: int) -> list[Keys]:
        numbers = [None] if kind == "queue" else range(shards)
        return [Keys(self.catalog.prefix, kind, name, number) for number in numbers]


def _number(reply: Callable[[], Any]) -> int:
    """Return a count; 0 if it cannot be read, for the rest of its queue can."""
    try:
        return int(reply() or 0)
    except BROKEN:
        return 0
