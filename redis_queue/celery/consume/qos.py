"""The in-flight records of kombu's Redis transport, settled only by who still has the lease."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

from celery.worker import state
from kombu.transport import virtual
from kombu.transport.redis import Mutex, MutexHeld, QoS
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps

from redis_queue.celery.consume.fetch import FetchingChannel
from redis_queue.celery.consume.in_flight import Records
from redis_queue.celery.consume.leases import Keeping
from redis_queue.celery.kombu_keys import InFlightKeys
from redis_queue.lazy_property import LazyProperty
from redis_queue.logs import logger_of
from redis_queue.store.keys import sweeping

logger = logger_of(__name__)

SWEEPS: Final = 6
"""Looks for leases that ran out per visibility timeout; kombu's own are 100 s apart."""

SWEEP: Final = 60.0
"""Most seconds between two of them."""

LOOK: Final = 10.0
"""Most seconds until a channel looks for messages without a wake-up, and checks that wake-ups still reach it."""

MUTEX_EXPIRE: Final = 20.0
"""Most seconds for which nobody else looks if a worker dies while it does.

kombu's mutex cannot be used: a worker that dies in the look which kombu takes when it starts holds it for 300 s.
"""


class LeasedQoS(QoS):
    """Mixed into kombu's QoS of a Redis channel: tells the keeper what is held, and asks before it settles.

    kombu gives a message that it restores the delivery tag which it had: without the question a late ack would delete
    the record of the worker that has the message now.
    """

    keeping: Keeping
    _swept_at = 0.0
    _looked_at = 0.0

    @LazyProperty
    def _records(self) -> Records:
        return Records.of(self.channel)

    @LazyProperty
    def _recorded(self) -> set[str]:
        """Tags of messages that are on their way to the worker."""
        return set()

    @LazyProperty
    def _outliving(self) -> set[str]:
        """Tags whose tasks still run though the connection by which they came is gone."""
        return set()

    def append(self, message: Any, delivery_tag: str) -> None:
        """Record a message that was taken."""
        if delivery_tag in self._recorded:
            self._recorded.discard(delivery_tag)
            virtual.QoS.append(self, message, delivery_tag)
            return
        since, delivery = time.monotonic(), message.delivery_info
        record = dumps([message._raw, delivery["exchange"], delivery["routing_key"]])
        score = self._records.add(delivery_tag, record)
        virtual.QoS.append(self, message, delivery_tag)
        self.keeping.hold(delivery_tag, since, score)

    def record(self, delivery_tag: str, since: float, score: float) -> None:
        """Note that a message which will be appended was recorded in Redis when it was taken, at *score*."""
        self._recorded.add(delivery_tag)
        self.keeping.hold(delivery_tag, since, score)

    def keep(self, message: Any) -> None:
        """Append a recorded message that nobody will hand on."""
        self.append(message, message.delivery_tag)

    def put_aside(self, delivery_tag: str, item: bytes) -> None:
        """Keep a message that nobody can read where it is in nobody's way."""
        self.keeping.put_aside(delivery_tag, item)

    def ack(self, delivery_tag: str) -> None:
        """Settle a message; a lost lease leaves the record to its new holder."""
        if delivery_tag in self._outliving:
            self._outliving.discard(delivery_tag)
            self.keeping.settle(delivery_tag)
        else:
            self._settle(delivery_tag)
        self.keeping.drop(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Settle or return a message; with a lost lease, neither."""
        if delivery_tag in self._outliving:
            # To return it takes the connection that is gone: it comes back when its lease runs out.
            self._outliving.discard(delivery_tag)
            if not requeue:
                self.keeping.settle(delivery_tag)
        elif requeue and self.keeping.is_ours(delivery_tag):
            super().reject(delivery_tag, requeue=True)
        elif requeue:
            virtual.QoS.ack(self, delivery_tag)
        else:
            self._settle(delivery_tag)
        self.keeping.drop(delivery_tag)

    def _settle(self, delivery_tag: str) -> None:
        if self.keeping.is_ours(delivery_tag):
            self._records.settle(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Give back unsettled messages when the channel closes."""
        try:
            super().restore_unacked_once(stderr)
        finally:
            if "_records" in vars(self):
                self._records.close()

    def restore_unacked(self, client: Any = None) -> Any:
        """Return what was not settled; what others have by now stays theirs.

        kombu calls this for a connection that broke, too. What runs meanwhile goes on, keeps its lease, and is settled
        by another connection: given back, it would run twice.
        """
        running = running_tags()
        for tag in list(self._delivered):
            if tag in running:
                self._outliving.add(tag)
            if tag in running or not self.keeping.is_ours(tag):
                self._delivered.pop(tag, None)
        tags = list(self._delivered)
        try:
            return super().restore_unacked(client)
        finally:
            for tag in tags:
                self.keeping.drop(tag)

    def restore_visible(self, start: int = 0, num: int | None = 10, interval: int = 10) -> None:  # noqa: ARG002
        """Return up to *num* messages whose lease ran out by the clock of Redis; may be called often."""
        now = time.monotonic()
        sixth = self.visibility_timeout / SWEEPS
        if now - self._swept_at >= min(SWEEP, sixth):
            self._swept_at = now
            with contextlib.suppress(MutexHeld):
                self._sweep(num)
        if isinstance(self.channel, FetchingChannel) and now - self._looked_at >= min(LOOK, sixth):
            self._looked_at = now
            self.channel.look_again()

    def _sweep(self, limit: int | None) -> None:
        # kombu's client adds the prefix of the broker's keys to some commands, and to this look it does not.
        index = InFlightKeys.of(self.channel).index
        with self.channel.conn_or_acquire() as client:
            seconds, microseconds = client.time()
            expired = seconds + microseconds / 1e6 - self.visibility_timeout
            with Mutex(client, sweeping(""), min(MUTEX_EXPIRE, self.visibility_timeout / 3)):
                tags = map(bytes_to_str, client.zrangebyscore(index, 0, expired, start=limit and 0, num=limit))
                # After a stop of the whole worker its own come first: nobody else may have seen that they ran out.
                restored = sum(self._return(tag, client) for tag in tags if not self.keeping.holds(tag))
        if restored:
            self.keeping.counters.add("restored", restored)

    def _return(self, tag: str, client: Any) -> bool:
        """Give a message back; False if nobody can read it."""
        try:
            self.restore_by_tag(tag, client)
        except (ValueError, TypeError, LookupError):
            logger.exception("cannot read what a dead worker held", extra={"action": "message_unreadable"})
            item = client.hget(self.unacked_key, tag)
            if item is not None:
                self.keeping.put_aside(tag, item)
            return False
        return True


def running_tags() -> set[str]:
    """Return the delivery tags of what this worker runs and goes on to run.

    Nothing if it ends and its pool with it, or where Celery was told to cancel what runs when a connection is lost.
    """
    # An exit code, and 0 is one.
    if state.should_terminate is not None and state.should_terminate is not False:
        return set()
    running = [request for request in tuple(state.active_requests) if not request.acknowledged]
    return {request.message.delivery_tag for request in running if not _will_be_cancelled(request)}


def _will_be_cancelled(request: Any) -> bool:
    return bool(request.task.app.conf.worker_cancel_long_running_tasks_on_connection_loss)


def lease_channels(transport: Any, keeping: Keeping, *, fetching: bool = False) -> None:
    """Make all channels of kombu's *transport*, those that are open and those to come, ask *keeping*.

    With *fetching* they record what they take in the step that takes it.
    """
    kind = transport.Channel
    bases = (FetchingChannel, kind) if fetching else (kind,)
    qos = type("LeasedQoS", (LeasedQoS, kind.QoS), {"keeping": keeping})
    leased = type(kind.__name__, bases, {"QoS": qos})
    transport.Channel = leased
    for channel in {*transport.channels, *transport._avail_channels}:
        channel.__class__ = leased
        channel.handlers["BRPOP"] = channel._brpop_read
        if channel._qos is not None:
            channel._qos.__class__ = qos
