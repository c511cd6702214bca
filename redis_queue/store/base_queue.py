"""What both kinds of queues share: the hash tags over which one is spread, and the operations on stored items."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import redis

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import Seconds, duration_ms, monotonic, point_ms
from redis_queue.errors import ConfigurationError, InvalidValueError, Reason, StoreError, StoreUnavailableError
from redis_queue.model import DeadLetter, InFlight, Item, PutBack, Quarantined
from redis_queue.store.chunks import CHUNK, MANY, Pace, check_budget, check_limit, check_offset, chunks, gap_ms
from redis_queue.store.connection import Client, connect
from redis_queue.store.ids import check_id, check_ids, id_bytes
from redis_queue.store.keys import Keys, Kind, check_name
from redis_queue.store.records import LeasedItem, Records, version_of
from redis_queue.store.registry import Registry
from redis_queue.store.scripts import Clock, Scripts, server_clock
from redis_queue.store.settings import QueueOverrides, Settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logger_of(__name__)

Found = TypeVar("Found")
Row = TypeVar("Row", DeadLetter, Quarantined, InFlight)
Held = TypeVar("Held", bound=LeasedItem)

Ask = Callable[[Records, list[Any]], Sequence[Found]]
"""Sends the fields of items of one shard; returns the answers for the first ones."""

Settle = Callable[[Records, Sequence[LeasedItem]], list[bool]]
"""Settles items of one shard; returns a flag for each: False if its lease was lost."""

QUIET: Final = 10.0
"""Seconds between two warnings about the same verb: a dispatcher calls many times a second."""


class Shards:
    """The shards of one queue. An id always belongs to the same one; a broken one does not block the others.

    A RedisQueue has one shard.
    """

    def __init__(self, kind: Kind, name: str, client: Client, settings: Settings, clock: Clock) -> None:
        self.name = name
        self.client = client
        self.settings = settings
        self.scripts = Scripts(client)
        #: Whether it is a Redis Cluster.
        self.is_cluster = isinstance(client, redis.RedisCluster)
        listed = kind == "queue"
        self._shards = [
            Records(self.scripts, Keys(settings.prefix, kind, name, number), settings, listed=listed, clock=clock)
            for number in ([None] if listed else range(settings.shards))
        ]
        self._kind = kind
        self._registry = Registry(self.scripts, settings.prefix)
        self._registered = False
        self._turn = 0
        self._warned_at: dict[str, float] = {}

    def __getitem__(self, index: int) -> Records:
        return self._shards[index]

    def __iter__(self) -> Iterator[Records]:
        return iter(self._shards)

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

    def ask(self, items: Iterable[Sequence[str]], call: Ask[Found], size: int = CHUNK) -> list[Found]:
        """Return the answers of *call* for *items*, each an id and other fields: up to *size* of one shard at a time.

        It is called again for those that it does not answer. Raises InvalidValueError for invalid ids.
        """
        found: list[Any] = []
        for chunk in chunks(items, size):
            answers: list[Any] = [None] * len(chunk)
            for shard, group in self.grouped([check_id(id_) for id_, *_ in chunk]):
                while group:
                    more = [field for index in group for field in (id_bytes(chunk[index][0]), *chunk[index][1:])]
                    for answer in call(shard, more):
                        answers[group.pop(0)] = answer
            found += answers
        return found

    def store(self, shard: Records, script: str, **arguments: Any) -> Any:
        """Call *script*, whose first answer tells that *shard* was new; return the second one.

        The queue is in the registry before anything is stored.
        """
        if not self._registered:
            self.register()
        new, reply = shard.call(script, now=shard.clock(), **arguments)
        if new:
            # It was the first call ever, or the first one after a FLUSHALL during the life of this object.
            self.register()
        return reply

    def register(self) -> None:
        """Add the queue to the registry."""
        self._registry.add(self._kind, self.name, self.settings)
        self._registered = True

    def destroy(self) -> None:
        """Delete all keys, and take the queue out of the registry."""
        for shard in self._shards:
            shard.destroy()
        self._registry.forget(self._kind, self.name)
        self._registered = False

    def in_turn(self) -> list[Records]:
        """Return all shards; each call begins with another one, so that a busy shard cannot starve the rest."""
        self._turn += 1
        first = self._turn % len(self._shards)
        return [*self._shards[first:], *self._shards[:first]]

    def each(
        self, work: Callable[[Records], Found], shards: Iterable[Records] | None = None
    ) -> tuple[list[Found], Sequence[StoreError]]:
        """Return what *work* returns for each of *shards* (default: all), and the errors of broken ones.

        If all are on one server that cannot be reached, the loop ends: the others would only wait for it again.
        """
        found: list[Found] = []
        errors: list[StoreError] = []
        for shard in self._shards if shards is None else shards:
            try:
                found.append(work(shard))
            except StoreError as error:
                errors.append(error)
                if not self.is_cluster and isinstance(error, StoreUnavailableError):
                    break
        return found, errors

    def report(self, verb: str, errors: Sequence[StoreError], *, done: bool) -> None:
        """Raise the first of *errors*, if any; if something was *done* in spite of it, only log it."""
        if not errors:
            return
        if not done:
            raise errors[0]
        now = monotonic()
        if now - self._warned_at.get(verb, -math.inf) >= QUIET:
            self._warned_at[verb] = now
            logger.warning(
                "%s: cannot %s every shard: %s",
                self.name,
                verb,
                errors[0],
                extra={"action": "shard_failed", "broken": len(errors)},
            )

    def settle(self, items: Iterable[LeasedItem], call: Settle) -> list[bool]:
        """Return the flags of *call*, which settles the items of one shard, for each of *items*.

        All shards are called; then the first error is raised.
        """
        if len(self._shards) == 1:
            # Each ack comes here: grouping takes as long as a seventh of it.
            return call(self._shards[0], list(items))
        flags, errors = self.try_settle(list(items), call)
        self.report("settle in", errors, done=False)
        return flags

    def try_settle(self, items: Sequence[LeasedItem], call: Settle) -> tuple[list[bool], Sequence[StoreError]]:
        """Settle as :meth:`settle` does; return the flags, False in a broken shard, and the errors."""
        flags = [False] * len(items)
        groups = dict(self.grouped([item.id for item in items]))

        def settle(shard: Records) -> None:
            group = groups[shard]
            for index, flag in zip(group, call(shard, [items[index] for index in group]), strict=True):
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
        return check_budget(max_bytes) // len(self._shards)

    def of_ids(self, ids: Iterable[str]) -> list[tuple[Records, list[str]]]:
        """Return each shard of *ids* with its ids. Raises InvalidValueError for invalid ids."""
        names = check_ids(ids)
        return [(shard, [names[index] for index in group]) for shard, group in self.grouped(names)]

    def check_one_server(self, verb: str) -> None:
        """Raise ConfigurationError on Redis Cluster."""
        if self.is_cluster:
            raise ConfigurationError(f"{verb} writes lists of other hash tags, which Redis Cluster forbids; use claim")

    def _number(self, id_: str) -> int:
        return zlib.crc32(id_bytes(id_)) % len(self._shards)


class BaseQueue(Generic[Held]):
    """A queue of items that are claimed under a lease: messages of a RedisQueue, entries of a DelayQueue."""

    _kind: ClassVar[Kind]

    def __init__(
        self,
        name: str,
        redis: str | Client,
        *,
        settings: Settings | None = None,
        clock: Clock = server_clock,
        **overrides: Unpack[QueueOverrides],
    ) -> None:
        self.name = check_name(name)
        self.settings = Settings.choose(settings, overrides)
        self.client = connect(redis, check=isinstance(redis, str))
        self._shards = Shards(self._kind, name, self.client, self.settings, clock)
        self._add_parts()

    def _add_parts(self) -> None:
        """Make what only this kind of queue has."""

    def __bool__(self) -> bool:
        return True

    def ack(self, item: Held) -> bool:
        """Finish *item*. False: the lease was lost (put back or settled before); nothing changed."""
        return self.ack_many([item])[0]

    def ack_many(self, items: Iterable[Held]) -> list[bool]:
        """Finish *items*, one round trip per 500 and shard; False for each whose lease was lost."""
        return self._shards.settle(items, Records.ack)

    def nack(
        self, item: Held, *, delay: Seconds = 0, reason: Reason = "", dead: bool = False, counted: bool = True
    ) -> bool:
        """Give *item* back, to be claimed again at once (a message before all others) or after *delay*.

        After its last delivery, or with *dead*, it becomes a dead letter with *reason*. With ``counted=False`` this
        delivery does not count: use it for work that you did not begin. False: the lease was lost; nothing changed.
        """
        return self.nack_many([item], delay=delay, reason=reason, dead=dead, counted=counted)[0]

    def nack_many(
        self,
        items: Iterable[Held],
        *,
        delay: Seconds = 0,
        reason: Reason = "",
        dead: bool = False,
        counted: bool = True,
    ) -> list[bool]:
        """Give *items* back, as :meth:`nack` does, keeping their order; one round trip per 500 and shard."""
        wait = duration_ms(delay)
        return self._shards.settle(
            items, partial(Records.nack, delay=wait, reason=reason, counted=counted or dead, dead=dead)
        )

    def extend(self, item: Held, lease: Seconds | None = None) -> bool:
        """Lengthen the lease to *lease* (default: that of the settings) from now; never shortens it.

        This also works after the lease expired, until the item is put back. False: the lease was lost.
        """
        return self.extend_many([item], lease)[0]

    def extend_many(self, items: Iterable[Held], lease: Seconds | None = None) -> list[bool]:
        """Lengthen the leases of *items*, as :meth:`extend` does."""
        length = self.settings.lease_ms if lease is None else max(1, duration_ms(lease, name="lease"))
        return self._shards.settle(items, partial(Records.extend, lease_ms=length))

    def put_back(self, limit: int = MANY) -> PutBack:
        """Put back up to *limit* items whose leases expired. Any number of processes may do so at once.

        A broken shard does not block the others; its error is raised if nothing was put back, else logged.
        """
        check_limit(limit, MANY)
        total = PutBack()

        def put_back(shard: Records) -> None:
            nonlocal total
            left = limit - total.returned - total.dead
            total += shard.put_back(left) if left > 0 else PutBack()

        _, errors = self._shards.each(put_back)
        self._shards.report("put back in", errors, done=total != PutBack())
        return total

    def look(self, id: str, *, max_bytes: int | None = None) -> Item | None:
        """Return the item *id* in any state, including dead letters; None if it does not exist.

        With *max_bytes* the body of a larger record is an :class:`Unread`.
        """
        return self._shards.of(check_id(id)).look(id, check_budget(max_bytes))

    def versions(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the versions of existing *ids*. The version of an id changes when a new item gets this id."""
        names = check_ids(ids)
        lines = self._shards.ask(zip(names), lambda shard, more: shard.run("records/versions", more=more))
        return {id_: version_of(line) for id_, line in zip(names, lines, strict=True) if line}

    def in_flight(self, *, offset: int = 0, limit: int = 100) -> list[InFlight]:
        """Return a page of the items in flight, in the order in which their leases end."""
        return self._shards.page(Records.in_flight, offset, limit, lambda held: (held.expires_at, held.id))

    def dead_letters(self, *, offset: int = 0, limit: int = 100, max_bytes: int | None = None) -> list[DeadLetter]:
        """Return a page of dead letters, oldest first. More than 1 MiB takes several calls.

        *max_bytes* limits what is read, in equal parts for the shards: the body of a dead letter that does not fit is
        an :class:`Unread`.
        """
        read = partial(Records.dead_letters, max_bytes=self._shards.share(max_bytes))
        return self._shards.page(read, offset, limit, lambda letter: (letter.died_at, letter.id))

    def quarantined(self, *, offset: int = 0, limit: int = 100, max_bytes: int | None = None) -> list[Quarantined]:
        """Return a page of unreadable records, oldest first, shard after shard.

        *max_bytes* limits what is read: *raw* of a record that does not fit is empty.
        """
        return self._shards.page(partial(Records.quarantined, max_bytes=self._shards.share(max_bytes)), offset, limit)

    def redrive(self, ids: Iterable[str] | None = None, *, rate: float | None = None) -> int:
        """Redrive dead letters (default: all), with deliveries reset to zero; return their number.

        *rate* (per second) spreads them over time: this call makes all but the first one delayed, and does not wait.
        Without a *rate* all are due at once.
        """
        return sum(map(sum, self.redrive_batches(ids, rate=rate)))

    def redrive_batches(self, ids: Iterable[str] | None = None, *, rate: float | None = None) -> Iterator[list[bool]]:
        """Redrive as :meth:`redrive` does, up to 500 at a time, and yield for each of a batch whether it was dead."""
        pace = Pace(gap_ms(rate))
        found = [(shard, None) for shard in self._shards] if ids is None else self._shards.of_ids(ids)
        for shard, names in found:
            yield from shard.redrive(names, pace)

    def delete_dead(self, ids: Iterable[str], *, until: datetime | None = None) -> int:
        """Delete the dead letters *ids*; return their number. With *until*, only those that died at or before it.

        Pass the time at which you listed them as *until*, to keep an item that was redriven and died again since.
        """
        latest = 0 if until is None else point_ms(until, name="until")
        delete = lambda shard, more: shard.call("records/delete_dead", latest=latest, more=more)  # noqa: E731
        return self._shards.ask(zip(check_ids(ids)), delete).count(ord("1"))

    def _purge(self, places: Sequence[str], known: Sequence[str], limit: int) -> int:
        for place in places:
            if place not in known:
                raise InvalidValueError(f"purge({place!r}): must be one of {', '.join(known)}")
        left = check_limit(limit, MANY)
        for place in places:
            for shard in self._shards:
                if left > 0:
                    left -= shard.purge("waiting" if place == "delayed" else place, left)
        return limit - left

    def destroy(self) -> None:
        """Delete the queue with all items, including those in flight, and remove it from the registry."""
        self._shards.destroy()
