"""Atomic fetch in the process of a test: a producer and a consumer without a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer

from redis_queue.celery.consume.channel import FetchingChannel
from redis_queue.celery.consume.fetch import Fetch
from redis_queue.celery.consume.in_flight import InFlightRecords
from redis_queue.celery.consume.qos import lease_channels
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.kombu.keys import InFlightKeys
from tests.support.celery.fake_leases import FakeLeases
from tests.support.servers import RedisServer
from tests.support.wait import wait_until


class Taker:
    """A consumer of *queues* that keeps what it receives."""

    def __init__(self, connection: Any, queues: list[str], prefetch: int, *, no_ack: bool = False) -> None:
        self.leases = FakeLeases(InFlightKeys.of(connection.default_channel))
        self.got: list[Any] = []
        self.messages: list[Any] = []
        self._connection = connection
        lease_channels(connection.transport, self.leases, fetching=True)  # type: ignore[arg-type]
        self.channel = connection.default_channel
        # Messages that it has not got yet hold leases as well, but no process.
        held, received = self.leases.held, self.channel._received
        self.leases.gates.processes = lambda: self.leases.processes - len(held) + len(received)
        self.leases.settle_alone = InFlightRecords(client_of(self.channel), self.leases.gates.keys).settle
        assert isinstance(self.channel, FetchingChannel)
        self.consumer = Consumer(
            self.channel,
            [Queue(name) for name in queues],
            callbacks=[self._take],
            prefetch_count=prefetch,
            no_ack=no_ack,
        )
        self.consumer.consume()

    def _take(self, body: Any, message: Any) -> None:
        self.got.append(body)
        self.messages.append(message)

    def take(self, count: int) -> list[Any]:
        """Return all received bodies as soon as there are *count* of them."""

        def enough() -> bool:
            with suppress(TimeoutError):
                self._connection.drain_events(timeout=0.05)
            return len(self.got) >= count

        wait_until(enough, timeout=5, description=f"{count} messages")
        return self.got

    def turn(self) -> None:
        """Let the event loop turn once."""
        with suppress(TimeoutError):
            self._connection.drain_events(timeout=0.01)

    def settle(self) -> None:
        """Acknowledge all received messages, and wait until Redis has confirmed it."""
        tags = [message.delivery_tag for message in self.messages]
        for message in self.messages:
            message.ack()
        self.messages.clear()

        def settled() -> bool:
            self.turn()
            return not any(tag in self.leases.settlement for tag in tags)

        wait_until(settled, timeout=5, description="the messages to be settled")


@contextmanager
def connected(server: RedisServer, **options: Any) -> Iterator[Any]:
    """Connect kombu to *server*."""
    with Connection(f"redis+socket://{server.socket}", transport_options=options) as connection:
        yield connection


def publish(connection: Any, body: Any, queue: str = "q", **options: Any) -> None:
    """Publish one message with a plain kombu producer."""
    connection.Producer().publish(body, routing_key=queue, serializer="json", declare=[Queue(queue)], **options)


def is_idle(taker: Taker) -> bool:
    """Tell whether *taker* waits for a wake-up."""
    found = taker.channel._fetch
    return found is not None and not (found.is_due or found.asked or found.commands._unanswered)


def wait_until_idle(taker: Taker) -> Fetch:
    """Return the Fetch of *taker* once it waits for a wake-up."""

    def idle() -> bool:
        taker.turn()
        return is_idle(taker)

    wait_until(idle, description="an idle consumer")
    found: Fetch | None = taker.channel._fetch
    assert found is not None
    return found


def drained(connection: Any) -> bool:
    """Let the event loop turn once, and connect again if a connection was lost."""
    with suppress(TimeoutError, *connection.connection_errors):
        connection.drain_events(timeout=0.01)
    return True
