"""Inspector: what every surface knows about the queues under one prefix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from redis_queue.connection import Client, connect
from redis_queue.delay import DelayQueue
from redis_queue.errors import InvalidNameError, RedisQueueError, SchemaError, WrongTypeError
from redis_queue.keys import Keys, Kind
from redis_queue.leasing import Clock, server_clock
from redis_queue.queue import RedisQueue
from redis_queue.registry import Known, Registry
from redis_queue.scripts import Scripts
from redis_queue.settings import Settings
from redis_queue.times import from_ms
from redis_queue.urls import url_of

AnyQueue = RedisQueue | DelayQueue

BROKEN: Final = (WrongTypeError, SchemaError, ValueError, OverflowError)
"""What is raised where somebody else wrote into the keys of one queue; ConfigurationError is a ValueError."""

CLASSES: Final[dict[Kind, str]] = {"queue": "RedisQueue", "delay": "DelayQueue"}


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One look at one queue: sizes now, totals since it exists.

    Of a DelayQueue, *ready* counts the entries that are due, *delayed* those that are not. *oldest_at* is when the
    oldest ready message was put, or the longest overdue entry was due. *put_back* counts the leases that ran out.
    *error* tells why a queue cannot be counted.
    """

    kind: Kind
    name: str
    ready: int = 0
    delayed: int = 0
    in_flight: int = 0
    dead: int = 0
    quarantined: int = 0
    paused: bool = False
    put: int = 0
    acked: int = 0
    redelivered: int = 0
    oldest_at: datetime | None = None
    next_due: datetime | None = None
    error: str = ""
    put_back: int = 0


Count = Literal["ready", "delayed", "in_flight", "dead", "quarantined", "put", "acked", "redelivered", "put_back"]


@dataclass(frozen=True, slots=True)
class Overview:
    """All queues under a prefix, seen at *at* by the server's clock."""

    at: datetime
    queues: Sequence[QueueRow]

    def total(self, count: Count) -> int:
        """Return the sum of one count over all queues."""
        return sum(getattr(row, count) for row in self.queues)


class Inspector:
    """Looks at every queue under *prefix* and finds the one to act on; it changes nothing.

    *redis* is a URL or a redis-py client. A queue is there once something was put into it.
    """

    def __init__(self, redis: str | Client, *, prefix: str = "redis_queue", clock: Clock = server_clock) -> None:
        self.client = connect(redis, check=isinstance(redis, str))
        #: Where that is, without user and password.
        self.url = url_of(self.client)
        self.prefix = Settings(prefix=prefix).prefix
        self._clock = clock
        self._scripts = Scripts(self.client)
        self._registry = Registry(self._scripts, prefix)

    def known(self, name: str | None = None) -> list[Known]:
        """Return what the registry says of every queue, or of those with *name*, by kind and name.

        Raises InvalidNameError if there is none with *name*.
        """
        everything = self._registry.all()
        if name is None:
            return everything
        return [known for known in everything if known.name == name] or [self._find("queue", name)]

    def open(self, known: Known) -> AnyQueue:
        """Return a queue from the registry, with the settings that it was written with."""
        settings = Settings(prefix=self.prefix, max_deliveries=known.max_deliveries, shards=known.shards)
        made = RedisQueue if known.kind == "queue" else DelayQueue
        return made(known.name, self.client, settings=settings, clock=self._clock)

    def queue(self, name: str) -> RedisQueue:
        """Return the RedisQueue *name*; raises InvalidNameError for an unknown name."""
        found = self.open(self._find("queue", name))
        assert isinstance(found, RedisQueue)  # noqa: S101 - the kind says so
        return found

    def delay_queue(self, name: str) -> DelayQueue:
        """Return the DelayQueue *name*; raises InvalidNameError for an unknown name."""
        found = self.open(self._find("delay", name))
        assert isinstance(found, DelayQueue)  # noqa: S101 - the kind says so
        return found

    def named(self, name: str) -> list[AnyQueue]:
        """Return the queues of either kind with *name*; raises InvalidNameError if there is none."""
        return [self.open(known) for known in self.known(name)]

    def queues(self, known: Iterable[Known] | None = None) -> list[QueueRow]:
        """Return one row for each of *known*, or each queue, by kind and name; O(1) for each."""
        return [self._row(one) for one in (self.known() if known is None else known)]

    def overview(self, known: Iterable[Known] | None = None) -> Overview:
        """Return the same rows and when they were read."""
        return Overview(self.now(), self.queues(known))

    def now(self) -> datetime:
        """Return the server's time."""
        return from_ms(self._now_ms())

    def expired(self, queue: AnyQueue) -> int:
        """Count the leases that have ended: what a put-back would find."""
        now = self._now_ms()
        found = (self._scripts.command("ZCOUNT", keys.in_flight, "-inf", now) for keys in self._keys(queue))
        return sum(map(int, found))

    def _now_ms(self) -> int:
        given = self._clock()
        if given:
            return given
        reply = self._scripts.command("TIME")
        # redis-py asks every primary of a cluster.
        seconds, micros = next(iter(reply.values())) if isinstance(reply, dict) else reply
        return int(seconds) * 1000 + int(micros) // 1000

    def _find(self, kind: Kind, name: str) -> Known:
        everything = self.known()
        for known in everything:
            if (known.kind, known.name) == (kind, name):
                return known
        names = sorted({known.name for known in everything if known.kind == kind})
        hint = _hint(name, names) if names else f"there is none in {self.url}"
        raise InvalidNameError(f"no {CLASSES[kind]} {name!r} under the prefix {self.prefix!r}: {hint}")

    def _row(self, known: Known) -> QueueRow:
        try:
            queue = self.open(known)
            found = self._of_queue(queue) if isinstance(queue, RedisQueue) else self._of_delay(queue)
        except BROKEN as error:
            # One broken queue must not hide the others.
            return QueueRow(known.kind, known.name, error=told(error))
        return QueueRow(known.kind, known.name, **found)

    def _of_queue(self, queue: RedisQueue) -> dict[str, Any]:
        stats = queue.stats()
        return {
            "ready": stats.ready,
            "delayed": stats.delayed,
            "in_flight": stats.in_flight,
            "dead": stats.dead,
            "quarantined": stats.quarantined,
            "paused": stats.paused,
            "put": stats.put,
            "acked": stats.acked,
            "redelivered": stats.redelivered,
            "put_back": stats.put_back,
            "oldest_at": stats.oldest_ready_at,
            "next_due": self._first_due(queue) if stats.delayed else None,
        }

    def _of_delay(self, queue: DelayQueue) -> dict[str, Any]:
        stats = queue.stats()
        totals = [
            self._scripts.command("HMGET", keys.meta, "put", "acked", "redelivered", "put_back")
            for keys in self._keys(queue)
        ]
        put, acked, redelivered, put_back = (
            sum(int(count or 0) for count in column) for column in zip(*totals, strict=True)
        )
        return {
            "ready": stats.due,
            "delayed": stats.waiting - stats.due,
            "in_flight": stats.in_flight,
            "dead": stats.dead,
            "quarantined": stats.quarantined,
            "put": put,
            "acked": acked,
            "redelivered": redelivered,
            "put_back": put_back,
            "oldest_at": stats.next_due if stats.due else None,
            "next_due": stats.next_due,
        }

    def _first_due(self, queue: RedisQueue) -> datetime | None:
        (keys,) = self._keys(queue)
        for first in self._scripts.command("ZRANGE", keys.waiting, 0, 0):
            due = self._scripts.command("ZSCORE", keys.waiting, first)
            return None if due is None else from_ms(float(due))
        return None

    def _keys(self, queue: AnyQueue) -> list[Keys]:
        if isinstance(queue, RedisQueue):
            return [Keys(self.prefix, "queue", queue.name)]
        return [Keys(self.prefix, "delay", queue.name, shard) for shard in range(queue.settings.shards)]


def told(error: Exception) -> str:
    """Return what to say of a queue that is :data:`BROKEN`."""
    return str(error) if isinstance(error, RedisQueueError) else "its counters cannot be read: redis-queue doctor"


def kind_of(queue: AnyQueue) -> Kind:
    """Return which kind *queue* is, as the registry calls it."""
    return "queue" if isinstance(queue, RedisQueue) else "delay"


def _hint(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known are {', '.join(map(repr, names[:MOST_NAMES]))}"


MOST_NAMES: Final = 10
"""Most names in an error message."""
