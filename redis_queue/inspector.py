"""Inspector: what every surface knows about the queues under one prefix."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from redis_queue.delay.model import sum_stats
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidNameError, RedisQueueError, SchemaError, WrongTypeError
from redis_queue.model import QueueStats
from redis_queue.queue.queue import RedisQueue
from redis_queue.queue.replies import read_stats
from redis_queue.store.connection import Client, connect
from redis_queue.store.keys import Keys, Kind
from redis_queue.store.records import Clock, server_clock
from redis_queue.store.registry import Known, Registry
from redis_queue.store.scripts import ReadCall, Scripts
from redis_queue.store.settings import Settings
from redis_queue.store.urls import url_of
from redis_queue.times import from_ms

AnyQueue = RedisQueue | DelayQueue

BROKEN: Final = (WrongTypeError, SchemaError, ValueError, OverflowError)
"""What is raised where somebody else wrote into the keys of one queue; ConfigurationError is a ValueError."""

KINDS: Final[tuple[Kind, ...]] = ("delay", "queue")

MOST_ROWS: Final = 50
"""Most queues of a page."""

MOST_SHARDS: Final = 2048
"""Most shards that one call counts."""

FEW_SHARDS: Final = 16
"""A queue with up to so many shards is always counted."""

TOTALS: Final = ("put", "acked", "redelivered", "put_back")

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


@dataclass(frozen=True, slots=True)
class Listing:
    """Some of the queues under a prefix: *known* of the *total* that match, from *offset* on.

    *unseen* counts queues that were not looked at because there are too many.
    """

    known: Sequence[Known]
    offset: int
    total: int
    unseen: int = 0
    limit: int = MOST_ROWS

    @property
    def next(self) -> int | None:
        """Offset of the next page; None on the last one."""
        end = self.offset + self.limit
        return end if end < self.total else None


class Inspector:
    """Looks at every queue under *prefix* and finds the one to act on; it changes nothing.

    *redis* is a URL or a redis-py client. A queue is there once something was put into it.
    """

    def __init__(self, redis: str | Client, *, prefix: str = "redis_queue", clock: Clock = server_clock) -> None:
        self.client = connect(redis, check=isinstance(redis, str))
        #: Its URL, without user and password.
        self.url = url_of(self.client)
        self.prefix = Settings(prefix=prefix).prefix
        self._clock = clock
        self._scripts = Scripts(self.client)
        self._registry = Registry(self._scripts, prefix)

    def known(self, name: str | None = None) -> list[Known]:
        """Return what the registry says of every queue, or of those with *name*, by kind and name.

        Raises InvalidNameError if there is none with *name*.
        """
        if name is None:
            return self._registry.all()
        found = [self.find(kind, name) for kind in KINDS]
        return [known for known in found if known is not None] or [self._find("queue", name)]

    def find(self, kind: Kind, name: str) -> Known | None:
        """Return the registry entry of one queue; None if it is missing or unreadable."""
        return self._registry.find(kind, name)

    def listing(
        self, search: str = "", *, kind: Kind | None = None, offset: int = 0, limit: int = MOST_ROWS
    ) -> Listing:
        """Return up to *limit* queues whose names contain *search*, by kind and name.

        It looks at no more than 20,000 queues: those that Redis returns first.
        """
        fields, count = self._registry.fields()
        unseen = count - len(fields)
        if search or kind is not None:
            start, part = (f"{kind}:".encode() if kind else b""), search.encode(errors="surrogateescape")
            fields = [one for one in fields if one.startswith(start) and part in one.partition(b":")[2]]
        return Listing(
            self._registry.read(fields[offset : offset + limit]), offset, len(fields), unseen=unseen, limit=limit
        )

    def first(self, most: int, preferred: Collection[tuple[str, str]] = ()) -> tuple[list[Known], int]:
        """Return up to *most* queues, *preferred* ones (kind and name) first, and the number of those left out."""
        fields, count = self._registry.fields()
        wanted = {f"{kind}:{name}".encode(errors="surrogateescape") for kind, name in preferred}
        chosen = sorted(fields, key=lambda field: field not in wanted)[:most]
        return self._registry.read(sorted(chosen)), count - len(chosen)

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
        """Return one row for each of *known*, or each queue, by kind and name; O(1) for each shard.

        Queues with many shards are not counted once those before them have :data:`MOST_SHARDS`.
        """
        rows = list(self.known() if known is None else known)
        looks: list[list[ReadCall] | str] = []
        left = MOST_SHARDS
        for one in rows:
            looks.append(self._looks(one, left))
            left -= one.shards if one.kind == "delay" and isinstance(looks[-1], list) else 0
        replies = iter(self._scripts.each([look for one in looks if isinstance(one, list) for look in one]))
        found = [
            QueueRow(one.kind, one.name, error=look) if isinstance(look, str) else self._row(one, look, replies)
            for one, look in zip(rows, looks, strict=True)
        ]
        return self._with_first_due(found)

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
        known = self.find(kind, name)
        if known is not None:
            return known
        fields, _ = self._registry.fields()
        names = [
            field.decode(errors="replace").partition(":")[2] for field in fields if field.startswith(kind.encode())
        ]
        hint = _hint(name, names) if names else f"{self.url} has no such queues"
        raise InvalidNameError(f"no {CLASSES[kind]} {name!r} under the prefix {self.prefix!r}: {hint}")

    def _looks(self, known: Known, left: int) -> list[ReadCall] | str:
        """Return the calls that count a queue of at most *left* shards, or why it is not counted."""
        try:
            Settings(prefix=self.prefix, max_deliveries=known.max_deliveries, shards=known.shards)
            if known.kind == "queue":
                return [self._scripts.bind("queue/stats", Keys(self.prefix, "queue", known.name)).look()]
            if known.shards > max(left, FEW_SHARDS):
                return f"not counted: its {known.shards:,} shards are too many for a list; open the page of the queue"
            shards = [Keys(self.prefix, "delay", known.name, number) for number in range(known.shards)]
        except BROKEN as error:
            # One broken queue must not hide the others.
            return told(error)
        now = self._clock()
        stats = [self._scripts.bind("delay/stats", keys).look(now=now) for keys in shards]
        return stats + [self._scripts.look("HMGET", keys.meta, *TOTALS) for keys in shards]

    def _row(self, known: Known, looks: Sequence[ReadCall], replies: Iterator[Callable[[], Any]]) -> QueueRow:
        mine = list(itertools.islice(replies, len(looks)))
        try:
            read = [reply() for reply in mine]
            found = _of_queue(read_stats(read[0])) if known.kind == "queue" else _of_delay(read)
        except BROKEN as error:
            return QueueRow(known.kind, known.name, error=told(error))
        return QueueRow(known.kind, known.name, **found)

    def _with_first_due(self, rows: Sequence[QueueRow]) -> list[QueueRow]:
        """Return *rows* with the next due time of each RedisQueue that has delayed messages."""
        asked = [number for number, row in enumerate(rows) if row.kind == "queue" and row.delayed]
        keys = [Keys(self.prefix, "queue", rows[number].name).waiting for number in asked]
        replies = self._scripts.each([self._scripts.look("ZRANGE", key, 0, 0, "WITHSCORES") for key in keys])
        found = list(rows)
        for number, reply in zip(asked, replies, strict=True):
            try:
                due = _score(reply())
                found[number] = replace(found[number], next_due=None if due is None else from_ms(due))
            except BROKEN as error:
                found[number] = QueueRow("queue", found[number].name, error=told(error))
        return found

    def _keys(self, queue: AnyQueue) -> list[Keys]:
        if isinstance(queue, RedisQueue):
            return [Keys(self.prefix, "queue", queue.name)]
        return [Keys(self.prefix, "delay", queue.name, shard) for shard in range(queue.settings.shards)]


def _of_queue(stats: QueueStats) -> dict[str, Any]:
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
    }


def _of_delay(replies: Sequence[Any]) -> dict[str, Any]:
    """Return the counts of a DelayQueue, whose *replies* are its shards' counts and then their totals."""
    shards = len(replies) // 2
    stats = sum_stats(replies[:shards])
    totals = [sum(int(count or 0) for count in column) for column in zip(*replies[shards:], strict=True)]
    return {
        "ready": stats.due,
        "delayed": stats.waiting - stats.due,
        "in_flight": stats.in_flight,
        "dead": stats.dead,
        "quarantined": stats.quarantined,
        "oldest_at": stats.next_due if stats.due else None,
        "next_due": stats.next_due,
        **dict(zip(TOTALS, totals, strict=True)),
    }


def _score(reply: Any) -> float | None:
    """Return the score of the first member of a sorted set; with a Cluster, redis-py returns pairs."""
    if not reply:
        return None
    return float(reply[0][1] if isinstance(reply[0], (tuple, list)) else reply[1])


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
