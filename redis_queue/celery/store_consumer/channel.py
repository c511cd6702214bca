"""StoreChannel: a channel that takes only messages of flows, for a worker whose other messages come from elsewhere."""

from __future__ import annotations

from typing import Any, Final, Protocol

from celery.worker import state
from kombu.transport import virtual

from redis_queue.celery.admission.admission import Capacity
from redis_queue.celery.fetch.channel import FetchingChannel
from redis_queue.celery.kombu.keys import amqp_step
from redis_queue.celery.leases.qos import LeasedQoS
from redis_queue.errors import RedisQueueError
from redis_queue.store.chunks import CHUNK
from redis_queue.store.redis_errors import RedisErrors

ERRORS: Final = (RedisQueueError, *RedisErrors)
"""What a lost connection to the store, or a Redis that refuses commands, may raise."""


class ChannelOwner(Protocol):
    """The StoreConsumer of a StoreChannel."""

    #: Whether the broker of the worker is Redis, so that priorities are those of kombu's Redis transport.
    broker_is_redis: bool

    @property
    def prefetch_count(self) -> int:
        """Number of messages that the worker takes ahead; 0 for no limit."""

    def note(self, *, waits: bool) -> None:
        """Record whether messages of flows wait for a process."""

    def lose(self, error: Exception) -> None:
        """Wait for the store after an *error*."""

    def flush(self) -> None:
        """Settle at once, by the open channel."""


class StoreChannel(FetchingChannel):
    """Takes only messages of flows; its lists are empty. An error of the store does not reach Celery."""

    owner: ChannelOwner

    def fetch_if_needed(self) -> None:
        """Ask for messages if there may be any and the worker has room for them; called before each poll."""
        super().fetch_if_needed()
        self.owner.note(waits=self.leases.admission.left)

    def settle_later(self, tag: str) -> bool:
        """Settle a message with the next batch: the next connection sends it if this one is lost."""
        try:
            if super().settle_later(tag):
                return True
        except ERRORS as error:
            self.owner.lose(error)
        self.leases.settlement.add(tag)
        self.owner.flush()
        return True

    def flush(self) -> None:
        """Send all that is to be settled."""
        try:
            super().flush()
        except ERRORS as error:
            self.owner.lose(error)

    def disconnect(self) -> None:
        """Close the connections of the fetch. It begins again with the next turn of the event loop."""
        self._end_fetch()

    def priority(self, n: int) -> int:
        if not self.owner.broker_is_redis:
            return amqp_step(n)
        step: int = super().priority(n)  # type: ignore[no-untyped-call]
        return step

    def _capacity(self) -> Capacity:
        # Messages of the broker may keep at most half of the processes from messages of flows.
        qos, processes = self.qos, self.leases.admission.processes()
        reserved = len(state.reserved_requests)
        others = reserved - min(reserved, len(qos._delivered) - len(qos._dirty))
        # Another worker is idle: it starts them at once; here they would hold places without running.
        ignored = 0 if self.leases.admission.peers else max(0, others - (processes - max(1, processes // 2)))
        return self.leases.admission.capacity(len(self._received) - ignored, self.owner.prefetch_count)

    def _room(self) -> int:
        return CHUNK


class StoreQoS(LeasedQoS):
    """Settles what its worker has when a connection is lost; an error of the store does not reach Celery."""

    def ack(self, delivery_tag: str) -> None:
        """Settle a message, also one whose connection was lost."""
        if delivery_tag not in self._outliving:
            super().ack(delivery_tag)
            return
        self._outliving.discard(delivery_tag)
        self.leases.settlement.add(delivery_tag)
        self.channel.owner.flush()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Settle or return a message. If it cannot be returned, the store gets it back later."""
        try:
            super().reject(delivery_tag, requeue)
        except ERRORS as error:
            self.leases.let_go(delivery_tag)
            virtual.QoS.ack(self, delivery_tag)
            self.channel.owner.lose(error)


def store_mixins(owner: ChannelOwner) -> tuple[type[FetchingChannel], type[LeasedQoS]]:
    members: dict[str, Any] = {"owner": owner}
    return type("StoreChannel", (StoreChannel,), members), StoreQoS
