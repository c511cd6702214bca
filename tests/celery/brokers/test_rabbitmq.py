"""AmqpBroker: a message that makes RabbitMQ close the channel affects no other message."""

import re
from typing import Any
from uuid import UUID

import pytest
from amqp.transport import TCPTransport
from celery import Celery

from redis_queue.celery import Dispatched, Dispatcher, DurableTasks
from redis_queue.celery.brokers import amqp as amqp_broker
from redis_queue.celery.brokers.amqp import FRAME_OVERHEAD, PIECE, AmqpBroker, TooLargeError
from redis_queue.celery.dispatch.outcome import DispatchOutcome
from redis_queue.celery.message.envelope import Envelope
from redis_queue.errors import StoreRefusedError
from redis_queue.store.ids import retry_id
from tests.support.celery.brokers import Broker, send_due
from tests.support.wait import must

pytestmark = pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)


def test_deleted_exchange_refuses_only_its_own_messages(
    app: Celery, broker: Broker, delayed: DurableTasks, work: Dispatcher
) -> None:
    exchange, bound = broker.name("gone"), broker.name("bound")
    broker.bind(bound, exchange, "x")
    send_due(delayed, exchange=exchange, routing_key="x", declare=[])
    assert work.run() == Dispatched(sent=1)
    with app.connection_for_write() as connection:
        connection.default_channel.exchange_delete(exchange)
    ids = [send_due(delayed) for _ in range(3)]
    lost = send_due(delayed, exchange=exchange, routing_key="x", declare=[])
    ids += [send_due(delayed) for _ in range(3)]
    # RabbitMQ closes the channel for all messages; sending them one by one shows which one it refused.
    assert work.run() == Dispatched(sent=6, failed=1)
    assert set(broker.take_ids(app.conf.task_default_queue)) == set(ids)
    assert [entry.id for entry in delayed.list()] == [lost]


def test_deleted_queue_is_declared_again(app: Celery, broker: Broker, delayed: DurableTasks, work: Dispatcher) -> None:
    brief = broker.name("brief")
    send_due(delayed, queue=brief)
    assert work.run() == Dispatched(sent=1)
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete(brief)
    late = send_due(delayed, queue=brief)
    assert work.run() == Dispatched(failed=1)
    assert delayed.run_now(late)
    assert work.run() == Dispatched(sent=1)
    assert broker.take_ids(brief) == [late]


def test_after_a_nack_the_next_message_has_a_new_channel(
    app: Celery, broker: Broker, delayed: DurableTasks, work: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ refuses all that a channel sends to a quorum queue if it has looked for the leader on a lost node."""
    opened, full, exchange = [], broker.name("full"), broker.name("exchange")
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}

    def noted(self: AmqpBroker, original: Any = AmqpBroker._channel) -> Any:
        opened.append(original(self))
        return opened[-1]

    monkeypatch.setattr(AmqpBroker, "_channel", noted)
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        channel.exchange_declare(exchange, "direct", durable=True, auto_delete=False)
        channel.queue_declare(full, durable=True, auto_delete=False, arguments=arguments)
        channel.queue_bind(full, exchange, "x")
    for _ in range(3):
        left = send_due(delayed, exchange=exchange, routing_key="x", declare=[])
        done = work.run()
    assert done == Dispatched(failed=1)
    broker.take_ids(full)
    assert delayed.run_now(left)
    assert work.run() == Dispatched(sent=1)
    assert [channel.is_open for channel in dict.fromkeys(opened)][-2:] == [False, True]


def test_a_task_and_its_retry_that_reach_no_queue_are_both_refused(
    app: Celery, broker: Broker, delayed: DurableTasks, work: Dispatcher
) -> None:
    lost = send_due(delayed, exchange=broker.name("topic"), routing_key="orders.nobody", declare=[])
    broker.bind(broker.name("other"), broker.name("topic"), "orders.paid")
    entry = must(delayed.queue.get(lost))
    # Both have the id of the task, by which RabbitMQ returns them.
    message = Envelope.unpack(entry.payload, lost, entry.headers)
    delayed.queue.push(message.pack(retry_id(lost)), due_at=entry.due_at, id=retry_id(lost), headers=entry.headers)
    good = send_due(delayed)
    assert work.run() == Dispatched(sent=1, failed=2)
    assert broker.take_ids(app.conf.task_default_queue) == [good]


def test_after_an_error_of_the_store_no_message_is_published_again(
    app: Celery, broker: Broker, delayed: DurableTasks, work: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise StoreRefusedError("no permission")

    ids = {send_due(delayed) for _ in range(3)}
    monkeypatch.setattr(DispatchOutcome, "sent", refuse)
    with pytest.raises(StoreRefusedError):
        work.run()
    taken = broker.take_ids(app.conf.task_default_queue)
    assert (len(taken), set(taken)) == (3, ids)


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        # RabbitMQ would close the connection, which looks like an outage to a client.
        ({"note": "x" * 140_000}, "must be <= 131,072, a frame of the broker"),
        ({"order": UUID(int=1)}, r"UUID.*order"),
        ({"x" * 256: 1}, r"<= 255"),
    ],
    ids=["larger than a frame", "of a type that AMQP lacks", "with a long name"],
)
def test_headers_that_the_broker_lacks_refuse_only_their_message(
    *, app: Celery, broker: Broker, delayed: DurableTasks, work: Dispatcher, headers: dict[str, Any], reason: str
) -> None:
    first = send_due(delayed)
    refused = send_due(delayed, headers=headers)
    last = send_due(delayed, headers={"note": "x" * 120_000})
    assert work.run() == Dispatched(sent=2, failed=1)
    assert set(broker.take_ids(app.conf.task_default_queue)) == {first, last}
    found = must(delayed.queue.look(refused))
    assert (found.state, found.deliveries) == ("delayed", 1)
    assert re.search(reason, found.reason)


def test_large_message_is_sent_in_pieces(
    app: Celery, broker: Broker, delayed: DurableTasks, work: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    write = TCPTransport.write

    def noted(self: TCPTransport, data: bytes) -> None:
        sizes.append(len(data))
        write(self, data)

    ids = [send_due(delayed), send_due(delayed, args=["x" * 1_000_000]), send_due(delayed)]
    monkeypatch.setattr(TCPTransport, "write", noted)
    assert work.run() == Dispatched(sent=3)
    assert sorted(broker.take_ids(app.conf.task_default_queue)) == sorted(ids)
    # Each write has to end within the timeout of the socket.
    assert sum(sizes) > 1_000_000
    assert max(sizes) == PIECE


def test_largest_frame_is_accepted(broker: Broker) -> None:
    app = broker.app()
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        frame_max = channel.connection.frame_max
        queue = broker.name("frames")
        connection.SimpleQueue(queue).close()

        def message(size: int) -> Any:
            envelope = Envelope(b"", "application/json", "utf-8", {"note": "x" * size}, {}, "", queue)
            return amqp_broker._message(envelope, "mark", frame_max)

        room = frame_max - FRAME_OVERHEAD - len(message(0)._serialize_properties())
        channel.basic_publish(message(room), routing_key=queue)
        # The connection is still open.
        assert channel.queue_declare(queue, passive=True).message_count >= 0
        with pytest.raises(TooLargeError, match="a frame of the broker"):
            message(room + 1)._serialize_properties()
