"""WorkerLeases: the messages that one worker holds, and whether their leases are still its own."""

from __future__ import annotations

import contextlib
import gc
import math
import pickle
import random
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import redis
from celery import Celery

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import monotonic
from redis_queue.celery.admission.admission import Admission
from redis_queue.celery.fetch.fetch import PendingFetch
from redis_queue.celery.fetch.settlement import InFlightRecords, Settlement
from redis_queue.celery.kombu.connection import client_of, options_of
from redis_queue.celery.leases.keeper_process import KeeperProcess
from redis_queue.celery.message.headers import is_redelivered
from redis_queue.celery.settings import part_of
from redis_queue.errors import ConfigurationError, RedisQueueError
from redis_queue.keeper.protocol import RenewalTime, pack, write_line
from redis_queue.keeper.renewal import LeaseIndex, Renewer
from redis_queue.store.keys import BrokerKeys
from redis_queue.store.redis_errors import RedisErrors, is_temporary_refusal

logger = logger_of(__name__)

TRUSTED: Final = 0.9
"""Share of a lease for which it is trusted after its renewal."""

COLLECT_AFTER: Final = 5.0
"""Seconds for which a message is held before Python is asked to free objects that only refer to each other."""

COLLECT_SHARE: Final = 0.005
"""Maximum share of the time that this takes."""

READ_TIMEOUTS: Final = {"socket_timeout": 2.0, "socket_connect_timeout": 2.0}
"""Timeouts in seconds for a reader, so that a scrape ends."""


@dataclass(slots=True)
class HeldMessage:
    """One message: when its lease began (*since*: monotonic clock, *score*: Redis clock), and when the keeper knew.

    *message* returns its object while anything in this process refers to it, then None. *id* is that of the task.
    *soon*: if this worker loses it, it returns at once, not when its lease ends.
    """

    since: float
    score: float
    message: Callable[[], Any]
    id: str
    soon: bool
    told_at: float = float("inf")
    lost: bool = False

    def score_at(self, renewed: RenewalTime) -> float:
        """Return the time of the lease after the last renewal."""
        return renewed.score if self.told_at < renewed.at else self.score


class WorkerLeases:
    """Renews the leases of one worker's messages while the process lives, even if its threads are blocked.

    *on_lost* is called with the delivery tag of a lost lease whose message is still held, the id of its task, and its
    age in seconds.
    *goes_on* returns whether the worker keeps its messages when a connection ends. Safe for threads. Raises
    ConfigurationError if the connection cannot be passed to another process, or if no keeper comes up: other workers
    would take the tasks of a worker without one.
    """

    def __init__(
        self,
        connection: Any,
        on_lost: Callable[[str, str | None, float], None],
        admission: Admission,
        goes_on: Callable[[], bool] = lambda: False,
    ) -> None:
        channel = connection.default_channel
        prefix = channel.global_keyprefix or ""
        self._in_flight = admission.keys.in_flight
        index = LeaseIndex(
            index=self._in_flight.index,
            lease_ends=self._in_flight.lease_ends,
            lease=self._in_flight.lease,
            signature=random.SystemRandom().randint(1, 999_999),
        )
        try:
            greeting = pack((options_of(channel, index.lease), index))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"the broker's connection cannot be passed to another process ({error}): give plain values in "
                "broker_transport_options and broker_use_ssl"
            ) from error
        self._on_lost = on_lost
        #: Whether the worker keeps its messages when a connection ends.
        self.goes_on = goes_on
        #: Seconds for which Redis keeps a message for its worker without a renewal.
        self.lease = index.lease
        self._trusted = index.lease * TRUSTED
        self._client = client_of(channel)
        self.counters = Counters(self._client, prefix)
        self._unreadable = BrokerKeys(prefix).unreadable
        self._renewer = Renewer(self._client, index)
        #: How many messages of flows the worker takes.
        self.admission = admission
        self._records = InFlightRecords(self._client, self.admission.keys)
        self._held: dict[str, HeldMessage] = {}
        #: Tags of messages that waited when their connection was lost, and are not settled yet.
        self.carried: set[str] = set()
        # When Python is asked again for what refers only to each other.
        self._collect_at = monotonic()
        #: The messages that are to be settled; their leases are held until they are.
        self.settlement = Settlement(self.admission.keys, self.release)
        #: Fetches whose replies were lost with their connections.
        self.unread: list[PendingFetch] = []
        #: Whether the event loop has ended, so that only ending tasks still call the channels.
        self.loop_has_ended = False
        # Tags whose records this worker removes at this moment.
        self._in_removal: set[str] = set()
        #: Number of lost leases.
        self.lost = 0
        self._keeper = KeeperProcess(greeting, index.lease, held=self._lines, on_lost=self._note_renewal)

    def hold(self, messages: Iterable[Any], since: float, score: float) -> None:
        """Renew the leases of *messages* from now on; they began at *since* (monotonic clock), *score* by Redis.

        That ends when a message is settled or returned, or when nothing in this process refers to its object.
        """
        held = {message.delivery_tag: _held(message, since, score) for message in messages}
        self._held.update(held)
        if self._keeper.write(b"".join(write_line(tag, score) for tag in held)):
            now = monotonic()
            for message in held.values():
                message.told_at = now

    def let_go(self, tag: str) -> None:
        """Return the message of *tag* soon: the worker has given it back."""
        if (held := self._held.get(tag)) is not None:
            held.message, held.soon = (lambda: None), True

    def abandoned(self) -> dict[str, HeldMessage]:
        """Return the messages that can be neither run nor settled any more, by their tags, the oldest first.

        Whoever may still settle a message refers to its object: the queue of a worker, a pool, a running task, a call
        that acknowledges it. So no pool has to tell that it has lost one.
        """
        all_held = dict(self._held)
        since = next((held.since for held in all_held.values()), math.inf)
        began = monotonic()
        if began >= max(since + COLLECT_AFTER, self._collect_at):
            # An error refers to the frames of its task, and they may refer to the error.
            gc.collect()
            ended = monotonic()
            self._collect_at = ended + max(COLLECT_AFTER, (ended - began) / COLLECT_SHARE)
        return {
            tag: held
            for tag, held in all_held.items()
            if held.message() is None and tag not in self.settlement and tag not in self._in_removal
        }

    def drop(self, tag: str) -> None:
        """Stop renewing the lease of *tag*."""
        self.release([tag], lost=[])

    def release(self, tags: list[str], *, lost: list[str]) -> None:
        """Stop renewing the leases of *tags*; those of *lost* were lost before."""
        for tag in lost:
            self._note_loss(tag)
        lines = [write_line(tag) for tag in tags if self._held.pop(tag, None) is not None]
        self.carried.difference_update(tags)
        if lines:
            self._keeper.write(b"".join(lines))

    @contextlib.contextmanager
    def removal(self, tags: Collection[str]) -> Iterator[None]:
        """Drop *tags* after the block, which removes their records. After an error in the block they are still held.

        A renewal that misses such a record is not reported as a loss.
        """
        self._in_removal.update(tags)
        try:
            yield
            self.release(list(tags), lost=[])
        finally:
            self._in_removal.difference_update(tags)

    def holds(self, tag: str) -> bool:
        """Return whether this worker holds *tag*, as far as it knows."""
        held = self._held.get(tag)
        return held is not None and not held.lost

    @property
    def keeper_is_up(self) -> bool:
        """Whether the keeper runs."""
        return self._keeper.is_up

    def is_ours(self, tag: str) -> bool:
        """Return whether this worker still has the lease of *tag*; if in doubt, ask Redis and renew it.

        A Redis that is full or cannot save cannot have given the message to another worker. Raises the errors of
        redis-py, which kombu and Celery handle.
        """
        held = self._held.get(tag)
        if held is None:
            return True
        if held.lost:
            return False
        renewed = self._keeper.renewed
        renewed_at = renewed.at if held.told_at < renewed.at else held.since
        if monotonic() - renewed_at < self._trusted:
            return True
        try:
            lost = self._renewer.renew({tag: held.score_at(renewed)}).lost
        except RedisQueueError as error:
            refused = isinstance(error.__cause__, redis.ResponseError)
            if refused and not isinstance(error.__cause__, redis.ReadOnlyError):
                return True
            raise (error.__cause__ or error) from None
        if lost:
            self._note_loss(tag)
        return not lost

    def put_aside(self, tag: str, item: bytes) -> None:
        """Move an unreadable message from its record *tag* to a list that no worker consumes."""
        with self.removal([tag]), self._client.pipeline() as pipe:
            pipe.rpush(self._unreadable, item)
            pipe.zrem(self._in_flight.lease_ends, tag)
            pipe.zrem(self._in_flight.index, tag)
            pipe.hdel(self._in_flight.unacked, tag)
            pipe.execute()

    def settle(self, tag: str) -> None:
        """Remove the record of *tag*, by a connection of its own; after a lost lease it stays for its new holder."""
        if self.is_ours(tag):
            with self.removal([tag]):
                self._records.settle([tag])

    @contextlib.contextmanager
    def settled_later(self, tag: str) -> Iterator[None]:
        """Settle *tag* on the next connection if the block, which settles it, finds no Redis that does."""
        try:
            yield
        except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError, OSError) as error:
            if isinstance(error, redis.ResponseError) and not is_temporary_refusal(error):
                raise
            self.settlement.add(tag)

    def settle_waiting(self) -> None:
        """Settle all messages that are to be settled, by a connection of its own; logs errors."""
        try:
            self.settlement.settle_all(self._records.settle)
        except RedisErrors as error:
            logger.warning("cannot settle messages: %s", error, extra={"action": "settle_failed"})

    def close(self) -> None:
        """Settle what is to be settled; end the keeper within a few seconds, even if it hangs."""
        self.settle_waiting()
        self._records.close()
        self._keeper.close()

    def _lines(self, renewed: RenewalTime) -> Iterator[bytes]:
        for tag, held in dict(self._held).items():
            yield write_line(tag, held.score_at(renewed))

    def _note_renewal(self, tag: str) -> None:
        # The record may be gone before the reply to its settlement is read, which tells whether the lease was lost.
        if tag not in self.settlement and tag not in self._in_removal:
            self._note_loss(tag)

    def _note_loss(self, tag: str) -> None:
        held = self._held.get(tag)
        if held is not None and not held.lost:
            held.lost = True
            self.lost += 1
            self._on_lost(tag, held.id or None, monotonic() - held.since)
            self.counters.add("lost")


def _held(message: Any, since: float, score: float) -> HeldMessage:
    # A second run without an outcome has to wait, as that of a killed worker: there may be many.
    soon = not is_redelivered(message.delivery_info)
    return HeldMessage(since, score, weakref.ref(message), _task_id_of(message), soon)


def _task_id_of(message: Any) -> str:
    """Return the task id of any message; "" for none."""
    found = message.headers.get("id") if isinstance(message.headers, dict) else None
    return found if isinstance(found, str) else ""


CounterName = Literal["lost", "restored", "dead", "dropped"]


@dataclass(frozen=True, slots=True)
class LeaseCounters:
    """Totals of all workers with leases since the broker's Redis was emptied.

    Best effort: a count that a worker could not write at once is missing.
    """

    #: Leases that a worker lost while it held the message: another worker may have run the task as well.
    lost: int = 0
    #: Messages that were returned to their queues because their leases had expired.
    restored: int = 0
    #: Tasks that were started too often without an outcome and are dead letters now.
    dead: int = 0
    #: Tasks that a worker did not start because another worker has them.
    dropped: int = 0


class Counters:
    """Counts in the Redis of a broker."""

    def __init__(self, client: redis.Redis, broker_prefix: str) -> None:
        self._client = client
        self._key = BrokerKeys(broker_prefix).counters

    def add(self, name: CounterName, amount: int = 1) -> None:
        """Count *amount* more; never raises."""
        try:
            self._client.hincrby(self._key, name, amount)
        except RedisErrors as error:
            logger.info("cannot count: %s", error, extra={"action": "count_failed"})

    def read(self) -> LeaseCounters:
        """Return the totals. Raises the errors of redis-py."""
        names = [item.name for item in fields(LeaseCounters)]
        reply: list[Any] = self._client.hmget(self._key, names)
        return LeaseCounters(*(int(raw) if raw is not None and bytes(raw).isdigit() else 0 for raw in reply))


def read_counters(app: Celery) -> LeaseCounters | None:
    """Return the totals in the broker of *app*, or None if that is not Redis; one command.

    Raises the errors of kombu and redis-py if the broker is away.
    """
    found = part_of(app, _counters_of, "lease_counters")
    return None if found is None else found.read()


def _counters_of(app: Celery) -> Counters | None:
    with app.connection_for_read(transport_options=READ_TIMEOUTS) as connection:
        if connection.transport.driver_type != "redis":
            return None
        # Not the default channel, which retries for as long as a worker would.
        channel = connection.channel()
        return Counters(client_of(channel), channel.global_keyprefix or "")
