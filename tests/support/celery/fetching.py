"""Atomic fetch in the process of a test: a producer and a consumer without a worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, Final

from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer
from kombu.transport.redis import Channel

from redis_queue.celery.admission.admission import Admission, AdmissionKeys
from redis_queue.celery.fetch.channel import FetchingChannel
from redis_queue.celery.fetch.fetch import Fetch, FetchReply, PendingFetch
from redis_queue.celery.fetch.settlement import InFlightRecords, Settlement
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.kombu.keys import InFlightKeys
from redis_queue.celery.leases.leases import WorkerLeases
from redis_queue.celery.leases.qos import lease_channels
from redis_queue.store.keys import FlowKeys
from tests.support.servers import RedisServer
from tests.support.wait import wait_until


class Unconnected(FetchingChannel, Channel):
    """A channel without a connection."""

    def __del__(self) -> None:
        """Close nothing: there is no connection."""


def take_in(item: bytes, put_aside: Callable[..., None]) -> Any:
    """Return a channel that has fetched *item*; if it is invalid, *put_aside* was called with its tag."""
    channel = object.__new__(Unconnected)
    channel._active_queues = ["celery"]
    channel._qos = SimpleNamespace(put_aside=put_aside, record=lambda *_: None, can_consume=lambda: True)
    channel.leases = FakeLeases()
    channel._take_in(FetchReply(1.0, 1.0, [("celery", item, "tag")]))
    return channel


class Taker:
    """A consumer of *queues* that keeps what it receives."""

    def __init__(
        self, connection: Any, queues: list[str], prefetch: int, *, processes: int = 1, no_ack: bool = False
    ) -> None:
        self.leases = FakeLeases(InFlightKeys.of(connection.default_channel))
        self.leases.processes = processes
        self.got: list[Any] = []
        self.messages: list[Any] = []
        self._connection = connection
        lease_channels(connection.transport, self.leases, fetching=True)  # type: ignore[arg-type]
        self.channel = connection.default_channel
        # Messages that it has not got yet hold leases as well, but no process.
        held, received = self.leases.held, self.channel._received
        self.leases.admission.processes = lambda: self.leases.processes - len(held) + len(received)
        self.leases.settle_alone = InFlightRecords(client_of(self.channel), self.leases.admission.keys).settle
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
    with Connection(f"redis+socket://{server.socket}", transport_options=options) as connection:
        yield connection


def publish(connection: Any, body: Any, queue: str = "q", **options: Any) -> None:
    """Publish one message with a plain kombu producer."""
    connection.Producer().publish(body, routing_key=queue, serializer="json", declare=[Queue(queue)], **options)


def publish_all(connection: Any, count: int) -> None:
    """Publish *count* messages, numbers from 0."""
    for number in range(count):
        publish(connection, number)


def fetch_of(taker: Taker) -> Fetch:
    found: Fetch | None = taker.channel._fetch
    assert found is not None
    return found


def is_idle(taker: Taker) -> bool:
    """Return whether *taker* waits for a wake-up."""
    found = taker.channel._fetch
    return found is not None and not (found.is_due or found.pending or found.commands._unanswered)


def wait_until_idle(taker: Taker) -> Fetch:
    """Return the Fetch of *taker* once it waits for a wake-up."""

    def idle() -> bool:
        taker.turn()
        return is_idle(taker)

    wait_until(idle, description="an idle consumer")
    return fetch_of(taker)


def drained(connection: Any) -> bool:
    """Let the event loop turn once, and connect again if a connection was lost."""
    with suppress(TimeoutError, *connection.connection_errors):
        connection.drain_events(timeout=0.01)
    return True


DEFAULT: Final = InFlightKeys.under("")


class MemoryCounters:
    def __init__(self) -> None:
        self.amounts: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        self.amounts[name] += amount


def leases_of(connection: Any, on_lost: Callable[[str, str | None, float], None] = lambda *_: None) -> WorkerLeases:
    keys = AdmissionKeys(InFlightKeys.of(connection.default_channel), FlowKeys("redis_queue"))
    return WorkerLeases(connection, on_lost, Admission(keys, lambda: 1))


class Held:
    """A message that a worker holds."""

    def __init__(self, delivery_tag: str) -> None:
        self.delivery_tag = delivery_tag
        self.headers: dict[str, Any] = {}
        self.delivery_info: dict[str, Any] = {}


class FakeLeases:
    """A WorkerLeases that renews nothing and never loses a lease."""

    def __init__(self, in_flight: InFlightKeys = DEFAULT) -> None:
        self.held: dict[str, float] = {}
        self.lease = in_flight.lease
        self.loop_has_ended = False
        self.admission = Admission(
            AdmissionKeys(in_flight, FlowKeys("redis_queue")), lambda: self.processes - len(self.held)
        )
        #: How many messages can run at once.
        self.processes = 1
        self.settlement = Settlement(self.admission.keys, self.release)
        self.lost: list[str] = []
        self.unread: list[PendingFetch] = []
        self.settle_alone: Callable[[list[str]], list[bytes]] = lambda _: []
        self.aside: list[bytes] = []
        self.counters = MemoryCounters()

        self.carried: set[str] = set()

    settled_later = WorkerLeases.settled_later

    def goes_on(self) -> bool:
        """Return False: no worker goes on after a connection."""
        return False

    def abandoned(self) -> dict[str, str]:
        """Return nothing: a test holds its messages."""
        return {}

    def hold(self, messages: Iterable[Any], since: float, score: float) -> None:
        assert since > 0
        self.held.update({message.delivery_tag: score for message in messages})

    def drop(self, tag: str) -> None:
        self.release([tag], lost=[])

    def release(self, tags: list[str], *, lost: list[str]) -> None:
        for tag in tags:
            self.held.pop(tag, None)
        self.lost += lost

    @contextmanager
    def removal(self, tags: Collection[str]) -> Iterator[None]:
        """Drop *tags* after the block."""
        yield
        self.release(list(tags), lost=[])

    def holds(self, tag: str) -> bool:
        """Return whether *tag* was held and not dropped."""
        return tag in self.held

    def is_ours(self, tag: str) -> bool:
        """Return True: no lease is ever lost."""
        return bool(tag)

    def settle_waiting(self) -> None:
        """Settle what is to be settled, by a connection of its own."""
        self.settlement.settle_all(self.settle_alone)

    def put_aside(self, tag: str, item: bytes) -> None:
        self.aside.append(item)
        self.drop(tag)
