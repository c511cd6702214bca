"""A worker that settles or returns a message removes its record: a renewal that misses it then is not a lost lease."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer

from redis_queue.celery.fetch.settlement import InFlightRecords
from redis_queue.celery.leases.qos import lease_channels
from redis_queue.store.scripts import load_scripts
from tests.support.celery.fetching import Held, leases_of, publish
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

SENTINEL = "without a record"


class Holder:
    """A consumer that holds one message under a real keeper; *lost* are the tags of all lost leases."""

    def __init__(self, connection: Any, *, fetching: bool) -> None:
        self.lost: list[str] = []
        self.messages: list[Any] = []
        self.leases = leases_of(connection, lambda tag, *_: self.lost.append(tag))
        lease_channels(connection.transport, self.leases, fetching=fetching)
        self.channel = connection.default_channel
        publish(connection, "x")
        consumer = Consumer(self.channel, [Queue("q")], on_message=self.messages.append, prefetch_count=1)
        consumer.consume()
        wait_until(lambda: connection.drain_events(timeout=5) or self.messages, description="the message")

    @property
    def message(self) -> Any:
        return self.messages[0]

    def wait_for_reports(self) -> None:
        """Wait until the keeper has renewed, and reported each lease without a record."""
        self.leases.hold([Held(SENTINEL)], time.monotonic(), time.time())
        wait_until(lambda: not self.leases.holds(SENTINEL), description="the report of a lost lease")
        self.leases.drop(SENTINEL)


@contextmanager
def holding(server: RedisServer, *, fetching: bool) -> Iterator[Holder]:
    """Connect a consumer with a visibility timeout of a second."""
    url = f"redis+socket://{server.socket}"
    with Connection(url, transport_options={"visibility_timeout": 1}) as connection:
        holder = Holder(connection, fetching=fetching)
        try:
            yield holder
        finally:
            holder.leases.close()


def requeue(holder: Holder) -> None:
    holder.message.requeue()


def ack(holder: Holder) -> None:
    holder.message.ack()


def close(holder: Holder) -> None:
    holder.channel.close()


def close_before_the_start_of_its_task(holder: Holder) -> None:
    """Lose the connection after Redis has settled the message, and before its task starts."""
    holder.channel.qos.settle_before_start(holder.message.delivery_tag)
    with holder.channel.conn_or_acquire() as client:
        wait_until(lambda: not client.exists("unacked"), description="the message to be settled")
    holder.channel._fetch.commands.close()
    holder.channel.close()


def ack_after_a_lost_connection(holder: Holder) -> None:
    tag = holder.message.delivery_tag
    qos = holder.channel.qos
    qos._delivered.pop(tag)
    qos._outliving.add(tag)
    holder.message.ack()


@pytest.mark.parametrize(
    ("end", "fetching"),
    [
        (requeue, True),
        (requeue, False),
        (close, True),
        (close, False),
        (close_before_the_start_of_its_task, True),
        (ack, False),
        (ack_after_a_lost_connection, True),
    ],
)
def test_a_late_reply_is_not_a_lost_lease(
    redis_server: RedisServer,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[Holder], None],
    *,
    fetching: bool,
) -> None:
    assert client.dbsize() == 0
    load_scripts(client)
    with holding(redis_server, fetching=fetching) as holder:
        reported: list[str] = []

        def wait_for_reports() -> None:
            assert not client.exists("unacked")
            holder.wait_for_reports()
            reported.append(holder.message.delivery_tag)

        def late(call: Callable[..., Any]) -> Callable[..., Any]:
            def replied_late(*arguments: Any, **options: Any) -> Any:
                reply = call(*arguments, **options)
                wait_for_reports()
                return reply

            return replied_late

        add = InFlightRecords.add

        def add_late(*arguments: Any) -> float:
            wait_for_reports()
            return add(*arguments)

        monkeypatch.setattr(InFlightRecords, "add", add_late)
        for name in ("settle", "restore"):
            monkeypatch.setattr(InFlightRecords, name, late(getattr(InFlightRecords, name)))
        end(holder)
        assert reported
        assert set(holder.lost) == {SENTINEL}
        assert not holder.leases.holds(holder.message.delivery_tag)


def test_a_lease_is_held_until_its_record_is_removed(redis_server: RedisServer, client: redis.Redis) -> None:
    assert client.dbsize() == 0
    with holding(redis_server, fetching=True) as holder:
        tag = holder.message.delivery_tag
        with pytest.raises(redis.ConnectionError), holder.leases.removal([tag]):
            raise redis.ConnectionError
        assert holder.leases.holds(tag)
        client.delete("unacked", "unacked_index")
        wait_until(lambda: holder.lost == [tag], description="the lost lease")
