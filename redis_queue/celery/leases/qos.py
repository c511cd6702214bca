"""LeasedQoS: settle messages of kombu's Redis transport only under their leases, and restore expired ones."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Set
from contextlib import suppress
from typing import Any, Final

import redis
from celery.worker import state
from kombu.transport import virtual
from kombu.transport.redis import QoS
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import monotonic
from redis_queue.celery.admission.admission import Move, places_without_message, tag_of, task_id_of
from redis_queue.celery.fetch.channel import FetchingChannel
from redis_queue.celery.fetch.fetch import PendingFetch
from redis_queue.celery.fetch.poller import FetchingPoller
from redis_queue.celery.fetch.settlement import InFlightRecords
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.leases.leases import WorkerLeases
from redis_queue.celery.message.headers import FlowHeader
from redis_queue.store.chunks import CHUNK
from redis_queue.store.redis_errors import UnlessRefused, as_unavailable

logger = logger_of(__name__)

SWEEPS_PER_LEASE: Final = 6
"""Sweeps for expired messages per lease, at least; those of kombu are 100 s apart."""

MAX_SWEEP_INTERVAL: Final = 60.0
"""Maximum seconds between two sweeps."""

SHOWN: Final = 5
"""Maximum number of messages that a line of the log names."""


class LeasedQoS(QoS):
    """Mixin for kombu's QoS of a Redis channel: holds the leases of its messages, and checks them before it settles.

    A message that kombu restores keeps its delivery tag: without the check a late ack would delete the record of the
    worker that has the message now.
    """

    leases: WorkerLeases
    _swept_at = 0.0

    @LazyProperty
    def _records(self) -> InFlightRecords:
        return InFlightRecords(client_of(self.channel), self.leases.admission.keys)

    #: Tags of fetched messages that are not settled yet; they are recorded already.
    _fetched = LazyProperty[set[str]](lambda _: set())
    #: Messages that were settled before their tasks started, and will be acknowledged, by their tags.
    _settled_early = LazyProperty[dict[str, Any]](lambda _: {})
    #: Tags of messages that are acknowledged when their tasks start, and have to be settled at once.
    _at_start = LazyProperty[set[str]](lambda _: set())
    #: Tags of messages that the worker still has after their connection was lost.
    _outliving = LazyProperty[set[str]](lambda _: set())

    def append(self, message: Any, delivery_tag: str) -> None:
        """Record a message that was taken, unless its fetch has recorded it."""
        if delivery_tag not in self._fetched:
            since, delivery = monotonic(), message.delivery_info
            record = dumps([message._raw, delivery["exchange"], delivery["routing_key"]])
            score = self._records.add(delivery_tag, record)
            self.leases.hold([message], since, score)
        # Only who may still settle it keeps the message itself.
        virtual.QoS.append(self, weakref.ref(message), delivery_tag)

    def record(self, messages: list[Any], since: float, score: float) -> None:
        """Hold the leases of fetched *messages*, which Redis recorded at *score*; they will be appended."""
        self._fetched.update(message.delivery_tag for message in messages)
        self.leases.hold(messages, since, score)

    def message_of(self, delivery_tag: str) -> Any:
        """Return a message that was delivered and is not settled; None if nothing refers to it any more."""
        found = self._delivered.get(delivery_tag)
        return None if found is None else found()

    def can_consume(self) -> bool:
        """Return whether the worker may take another message; those of earlier connections that wait count as well."""
        count = self.prefetch_count
        return not count or self._unsettled < count

    def can_consume_max_estimate(self) -> int | None:
        """Return how many messages the worker may take; None if there is no limit."""
        count = self.prefetch_count
        return max(0, count - self._unsettled) if count else None

    @property
    def _unsettled(self) -> int:
        return len(self._delivered) - len(self._dirty) + len(self.leases.carried)

    def put_back(self, delivery_tag: str) -> None:
        """Return a fetched message, which becomes the next one of its queue."""
        if self.leases.is_ours(delivery_tag):
            self.restore_by_tag(delivery_tag)
        self._fetched.discard(delivery_tag)
        self.leases.drop(delivery_tag)

    def return_fetch(self, fetch: PendingFetch) -> None:
        """Return the messages of a fetch whose reply was lost; they become the next ones of their queues."""
        tags = (tag_of(fetch.tag, number) for number in range(1, fetch.limit + 1))
        recorded = list(itertools.takewhile(lambda tag: self._records.find(tag) is not None, tags))
        for tag in reversed(recorded):
            self._return(tag)

    def put_aside(self, delivery_tag: str, item: bytes) -> None:
        """Move an unreadable message to a list that no worker consumes."""
        self._fetched.discard(delivery_tag)
        self.leases.put_aside(delivery_tag, item)

    def settle_before_start(self, delivery_tag: str) -> None:
        """Send the removal of the record of a fetched message now; its acknowledgement has no effect later."""
        message = self.message_of(delivery_tag)
        if delivery_tag in self._fetched and self._settle_later(delivery_tag):
            self._settled_early[delivery_tag] = message
            self.channel.flush()

    def settle_at_start(self, delivery_tag: str) -> None:
        """Let the acknowledgement of a fetched message, which comes when its task starts, settle it at once."""
        self._at_start.add(delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Settle a message; a lost lease leaves the record to its new holder."""
        if delivery_tag in self._settled_early:
            del self._settled_early[delivery_tag]
            virtual.QoS.ack(self, delivery_tag)
        elif delivery_tag in self._outliving:
            self._outliving.discard(delivery_tag)
            with self.leases.settled_later(delivery_tag):
                self.leases.settle(delivery_tag)
                self.leases.drop(delivery_tag)
        else:
            self._settle(delivery_tag)
            if delivery_tag in self._at_start:
                self._at_start.discard(delivery_tag)
                self.channel.settle_now()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Settle or return a message; with a lost lease, neither."""
        if not requeue:
            self.ack(delivery_tag)
            return
        self._fetched.discard(delivery_tag)
        if delivery_tag in self._outliving:
            # Its connection is lost: the next one returns it.
            self._outliving.discard(delivery_tag)
            self.leases.let_go(delivery_tag)
            return
        if self.leases.is_ours(delivery_tag):
            super().reject(delivery_tag, requeue=True)
        else:
            virtual.QoS.ack(self, delivery_tag)
        self.leases.drop(delivery_tag)

    def _settle(self, delivery_tag: str) -> None:
        if delivery_tag not in self._fetched or not self._settle_later(delivery_tag):
            with self.leases.settled_later(delivery_tag):
                if self.leases.is_ours(delivery_tag):
                    with self.leases.removal([delivery_tag]):
                        self._records.settle([delivery_tag])
                self.leases.drop(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def _settle_later(self, tag: str) -> bool:
        """Settle a fetched message with the next batch, if its lease is not lost; False if its channel is closed."""
        if self.leases.holds(tag) and not self.channel.settle_later(tag):
            return False
        self._fetched.discard(tag)
        if tag not in self.leases.settlement:
            self.leases.drop(tag)
        return True

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Return unsettled messages when the channel closes."""
        try:
            super().restore_unacked_once(stderr)
        finally:
            if "_records" in vars(self):
                self._records.close()

    def restore_unacked(self, client: Any = None) -> Any:
        """Return unsettled messages whose leases are not lost.

        kombu calls this after a lost connection as well. Then the worker keeps them, under their leases: returned,
        those that run, or that a pool has, would run twice. The next connection settles them, and returns those that
        Celery drops.
        """
        unstarted = self._settled_early.keys() & self._delivered
        kept = self._kept(unstarted)
        with self.leases.removal(unstarted):
            self.leases.settlement.withdraw(unstarted)
            for tag in list(self._delivered):
                if tag in kept:
                    self._outliving.add(tag)
                if tag in kept or tag in self.leases.settlement:
                    self._delivered.pop(tag, None)
            # The oldest one last: it becomes the next one of its queue.
            tags = list(reversed(self._delivered))
            try:
                for tag in tags:
                    self._delivered.move_to_end(tag)
                    if tag in unstarted:
                        self._record_again(tag)
                    elif not self.leases.is_ours(tag):
                        self._delivered.pop(tag, None)
                return super().restore_unacked(client)
            finally:
                for tag in tags:
                    self.leases.drop(tag)

    def _kept(self, unstarted: Set[str]) -> Set[str]:
        """Return the tags of the messages that the worker keeps when the channel closes; it lets go of *unstarted*."""
        running = running_tags()
        if not self.leases.goes_on():
            return running
        kept = self._delivered.keys() - unstarted
        self.leases.carried |= kept - running
        return kept

    def _record_again(self, tag: str) -> None:
        """Record a message that was settled, but whose task did not start: the pool was closed."""
        message = self._settled_early.pop(tag)
        self._records.add(tag, dumps([message._raw, "", message.queue]))

    def restore_visible(self, start: int = 0, num: int | None = 10, interval: int = 10) -> None:  # noqa: ARG002
        """Return messages that this worker has lost to their queues, and up to *num* of others; may be called often.

        Those are messages whose leases ended by the clock of Redis, and messages that workers without leases hold for
        longer than the visibility timeout.
        """
        now = monotonic()
        try:
            self._return_lost()
            if now - self._swept_at >= min(MAX_SWEEP_INTERVAL, self.leases.lease / SWEEPS_PER_LEASE):
                self._swept_at = now
                self._sweep(num)
        except redis.ResponseError as error:
            # kombu looks again after a lost connection; another error is logged with its stack.
            raise as_unavailable(error) or error from error.__cause__

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False, *, ended: bool = False) -> bool:
        """Return a message to its queue, even if Redis is full; False if another worker returned or settled it.

        *ended*: only if its lease has ended; its worker may have renewed it meanwhile.
        """
        record = self._records.find(tag)
        if record is None:
            self._records.settle([tag])
            return False
        found = _Pushes(self.channel.global_keyprefix or "")
        payload, exchange, queue = loads(bytes_to_str(record))
        self.channel._do_restore_message(payload, exchange, queue, found, leftmost)
        header = FlowHeader.of(payload.get("headers")) if self.leases.admission.here else None
        with self.leases.removal([tag]):
            with UnlessRefused():
                if header is not None and found.rows:
                    step = self.channel.priority(self.channel._get_message_priority(payload))
                    move = Move(tag, task_id_of(payload), found.rows[1].encode(), queue, step, header)
                    return self._records.return_waiting(move, record, last=leftmost, ended=ended)
                return self._records.restore(tag, record, found.rows, last=leftmost, ended=ended)
            super().restore_by_tag(tag, client, leftmost)
            return True

    def _return_lost(self) -> None:
        """Let go of the messages that nothing in this worker can run or settle any more.

        They return at once: those that waited, or were given back, when their connection was lost, and those of a first
        delivery. Others may have run twice, and would run again and again while no result can be stored: they return
        when their leases end, as those of a killed worker.
        """
        forget_lost_requests()
        lost = self.leases.abandoned()
        waited = self.leases.carried.intersection(lost)
        # The oldest one last: it becomes the next one of its queue.
        for tag in reversed(lost):
            if (lost[tag].soon or tag in waited) and self.leases.is_ours(tag):
                self._return(tag)
            self.leases.drop(tag)
            for channel in self.channel.connection.channels:
                if tag in channel.qos._delivered:
                    virtual.QoS.ack(channel.qos, tag)
        if waited:
            text = "returned %d messages that waited when their connection was lost"
            logger.info(text, len(waited), extra={"action": "waiting_returned"})
        if ids := [held.id for tag, held in lost.items() if tag not in waited]:
            logger.warning(
                "lost %d messages, which come again, after a second delivery when their leases end: their tasks ended "
                "without an outcome (as when no result can be stored), or the pool has dropped them; tasks %s",
                len(ids),
                ", ".join(ids[:SHOWN]),
                extra={"action": "messages_lost"},
            )

    def _sweep(self, limit: int | None) -> None:
        tags = self._records.expired(self.visibility_timeout, CHUNK if limit is None else limit)
        # After the whole worker was stopped, its own messages may be among them: they are still held.
        # The oldest one last: it becomes the next one of its queue.
        restored = sum(self._return(tag, ended=True) for tag in reversed(tags) if not self.leases.holds(tag))
        if not (isinstance(self.channel, FetchingChannel) and self.channel.fetches):
            # Else the next fetch settles what the last connection could not.
            self.leases.settle_waiting()
        if self.leases.admission.in_use:
            with self.channel.conn_or_acquire() as client:
                tags = places_without_message(self.leases.admission.keys, client)
            self._records.free(tags)
        if restored:
            self.leases.counters.add("restored", restored)

    def _return(self, tag: str, *, ended: bool = False) -> bool:
        """Return a message to its queue; False if it is unreadable."""
        try:
            return self.restore_by_tag(tag, ended=ended)
        except (ValueError, TypeError, LookupError):
            logger.exception("cannot read a message of a dead worker", extra={"action": "message_unreadable"})
            item = self._records.find(tag)
            if item is not None:
                self.leases.put_aside(tag, item)
            return False


class _Pushes:
    """Collects the pushes of kombu instead of sending them."""

    def __init__(self, prefix: str) -> None:
        self.rows: list[str] = []
        self._prefix = prefix

    def rpush(self, key: str, message: str) -> None:
        self.rows += (f"{self._prefix}{key}", message)

    lpush = rpush


def running_tags() -> set[str]:
    """Return the delivery tags of tasks that this worker runs and will finish; empty if the worker terminates."""
    # An exit code, which may be 0.
    if state.should_terminate is not None and state.should_terminate is not False:
        return set()
    requests = tuple(state.active_requests)
    return {request.message.delivery_tag for request in requests if not request.acknowledged}


def forget_lost_requests() -> None:
    """Remove those requests from Celery's table to which nothing else refers.

    Whoever may still run or end a request refers to it: a queue of the worker, or the callbacks that its pool has. An
    error that a thread swallows, or a job that a pool forgets, leaves a request in the table, which counts as running.
    """
    for id_ in tuple(state.requests):
        with suppress(KeyError):
            if _references(state.requests, id_) == _references_of_alone:
                del state.requests[id_]


def _references(table: dict[str, Any], key: str) -> int:
    return sys.getrefcount(table[key])


# As many as the table and this call add, which differs between versions of Python.
_references_of_alone: Final = _references({"": object()}, "")


def lease_channels(
    transport: Any,
    leases: WorkerLeases,
    *,
    fetching: bool = False,
    mixins: tuple[type[FetchingChannel], type[LeasedQoS]] = (FetchingChannel, LeasedQoS),
) -> None:
    """Hold the messages of all channels of kombu's *transport*, open and future ones, under *leases*.

    With *fetching* they use atomic fetch. *mixins* are added to the classes of channels and of their QoS. Call it
    before the event loop watches the transport.
    """
    kind = transport.Channel
    for_channels, for_qos = mixins
    bases = (for_channels, kind) if fetching else (kind,)
    qos = type("LeasedQoS", (for_qos, kind.QoS), {"leases": leases})
    leased = type(kind.__name__, bases, {"QoS": qos, "leases": leases})
    transport.Channel = leased
    channels = {*transport.channels, *transport._avail_channels}
    if fetching:
        transport.cycle = poller = FetchingPoller()
        for channel in channels:
            poller.add(channel)
    for channel in channels:
        channel.__class__ = leased
        if channel._qos is not None:
            channel._qos.__class__ = qos
