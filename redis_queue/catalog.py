"""Catalog: find and open the queues under one prefix, and put back what their expired leases hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from redis_queue.basics.options import did_you_mean
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidNameError, RedisQueueError
from redis_queue.model import PutBack
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.chunks import MANY
from redis_queue.store.connection import Client, connect
from redis_queue.store.keys import Kind
from redis_queue.store.registry import Registry, RegistryRow
from redis_queue.store.scripts import Clock, Scripts, server_clock
from redis_queue.store.settings import Settings
from redis_queue.store.urls import url_of

AnyQueue = RedisQueue | DelayQueue

Opened = TypeVar("Opened", RedisQueue, DelayQueue)

KINDS: Final[tuple[Kind, ...]] = ("queue", "delay")

MAX_ROWS: Final = 50
"""Default size of a page of queues."""

CLASSES: Final[dict[Kind, type[AnyQueue]]] = {"queue": RedisQueue, "delay": DelayQueue}


@dataclass(frozen=True, slots=True)
class CatalogPage:
    """A page of the queues under a prefix: *known*, of the *total* that match, from *offset* on.

    *unseen* counts queues that were not searched because there are too many.
    """

    known: Sequence[RegistryRow]
    offset: int
    total: int
    unseen: int = 0
    limit: int = MAX_ROWS

    @property
    def next(self) -> int | None:
        """Offset of the next page; None on the last one."""
        end = self.offset + self.limit
        return end if end < self.total else None


class Catalog:
    """All queues under *prefix*, by the registry; it changes nothing.

    *redis* is a URL or a redis-py client. A queue is registered by the first message or entry put into it. Raises
    ConfigurationError for an invalid prefix, and StoreUnavailableError if the Redis of a URL cannot be reached.
    """

    def __init__(self, redis: str | Client, *, prefix: str = "redis_queue", clock: Clock = server_clock) -> None:
        self.client = connect(redis, check=isinstance(redis, str))
        #: URL of the Redis, without user and password.
        self.url = url_of(self.client)
        self.prefix = Settings(prefix=prefix).prefix
        self.clock = clock
        self._registry = Registry(Scripts(self.client), prefix)

    def known(self, name: str | None = None) -> list[RegistryRow]:
        """Return the registry entries of all queues, or of those with *name*, by kind and name.

        Raises InvalidNameError if no queue has this *name*.
        """
        if name is None:
            return self._registry.all()
        found = [self.find(kind, name) for kind in sorted(KINDS)]
        return [known for known in found if known is not None] or [self._find("queue", name)]

    def find(self, kind: Kind, name: str) -> RegistryRow | None:
        """Return the registry entry of one queue; None if it is missing or unreadable."""
        return self._registry.find(kind, name)

    def listing(
        self, search: str = "", *, kind: Kind | None = None, offset: int = 0, limit: int = MAX_ROWS
    ) -> CatalogPage:
        """Return up to *limit* queues whose names contain *search*, by kind and name.

        It searches at most 20,000 queues: those that Redis returns first.
        """
        fields, count = self._registry.fields()
        unseen = count - len(fields)
        if search or kind is not None:
            start, part = (f"{kind}:".encode() if kind else b""), search.encode(errors="surrogateescape")
            fields = [field for field in fields if field.startswith(start) and part in field.partition(b":")[2]]
        return CatalogPage(
            self._registry.read(fields[offset : offset + limit]), offset, len(fields), unseen=unseen, limit=limit
        )

    def first(self, most: int, preferred: Collection[tuple[str, str]] = ()) -> tuple[list[RegistryRow], int]:
        """Return up to *most* queues, *preferred* ones (kind and name) first, and the number of those left out."""
        fields, count = self._registry.fields()
        wanted = {f"{kind}:{name}".encode(errors="surrogateescape") for kind, name in preferred}
        chosen = sorted(fields, key=lambda field: field not in wanted)[:most]
        return self._registry.read(sorted(chosen)), count - len(chosen)

    def open(self, known: RegistryRow) -> AnyQueue:
        """Return a queue from the registry, with the settings it was last written with.

        Raises ConfigurationError for settings that no queue can have.
        """
        return open_as(RedisQueue, known, self) if known.kind == "queue" else open_as(DelayQueue, known, self)

    def queue(self, name: str) -> RedisQueue:
        """Return the RedisQueue *name*; raises InvalidNameError for an unknown name."""
        return open_as(RedisQueue, self._find("queue", name), self)

    def delay_queue(self, name: str) -> DelayQueue:
        """Return the DelayQueue *name*; raises InvalidNameError for an unknown name."""
        return open_as(DelayQueue, self._find("delay", name), self)

    def queues(self, name: str | None = None) -> list[AnyQueue]:
        """Return all queues, or those of either kind with *name*; raises InvalidNameError for an unknown name."""
        return [self.open(known) for known in self.known(name)]

    def _find(self, kind: Kind, name: str) -> RegistryRow:
        known = self.find(kind, name)
        if known is not None:
            return known
        fields, _ = self._registry.fields()
        names = [
            field.decode(errors="replace").partition(":")[2] for field in fields if field.startswith(kind.encode())
        ]
        hint = did_you_mean(name, names) if names else f"{self.url} has no such queues"
        raise InvalidNameError(f"no {CLASSES[kind].__name__} {name!r} under the prefix {self.prefix!r}: {hint}")


def open_as(made: type[Opened], known: RegistryRow, catalog: Catalog) -> Opened:
    """As :meth:`Catalog.open`, for a queue whose class is known."""
    settings = Settings(prefix=catalog.prefix, max_deliveries=known.max_deliveries, shards=known.shards)
    return made(known.name, catalog.client, settings=settings, clock=catalog.clock)


def kind_of(queue: AnyQueue) -> Kind:
    """Return the kind of *queue*, as the registry names it."""
    return "queue" if isinstance(queue, RedisQueue) else "delay"


@dataclass(frozen=True, slots=True)
class PutBackStep:
    """The result of one step in a queue, or the *error* that ended the work on it."""

    known: RegistryRow
    back: PutBack = field(default_factory=PutBack)
    promoted: int = 0
    error: RedisQueueError | None = None

    @property
    def name(self) -> str:
        """Kind and name of the queue, as the registry writes them."""
        return f"{self.known.kind}:{self.known.name}"


def put_back_each(
    catalog: Catalog, queues: Iterable[RegistryRow], *, step: int = MANY, promote: bool = False
) -> Iterator[PutBackStep]:
    """Put back expired leases, queue by queue, up to *step* leases at a time; yield the result of each step.

    With *promote*, delayed messages that are due become ready, too. Errors of a queue are yielded, not raised.
    """
    for known in queues:
        try:
            queue = catalog.open(known)
            while (back := queue.put_back(step)) != PutBack():
                yield PutBackStep(known, back)
            ready = queue.promote() if promote and isinstance(queue, RedisQueue) else 0
            yield PutBackStep(known, promoted=ready)
        except RedisQueueError as error:
            yield PutBackStep(known, error=error)
