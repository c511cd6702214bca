"""A message that makes RabbitMQ close the channel takes no other one with it."""

from __future__ import annotations

import pytest

from redis_queue.celery import DelayedTasks, Dispatched, Dispatcher
from tests.celery.brokers import Broker

pytestmark = [pytest.mark.celery, pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)]


def send_due(delayed: DelayedTasks, **options: object) -> str:
    """Delay a task and make it due."""
    result = delayed.app.send_task("shop.remind", countdown=60, **options)
    assert delayed.run_now(result.id)
    return str(result.id)


def test_an_exchange_that_goes_away_refuses_its_messages_and_no_others(
    broker: Broker, redis_url: str, client: object
) -> None:
    app = broker.app(redis_queue_url=redis_url)
    delayed = DelayedTasks(app)
    work = Dispatcher(app, delayed.queue)
    exchange, bound = broker.name("gone"), broker.name("bound")
    broker.bind(bound, exchange, "x")
    send_due(delayed, exchange=exchange, routing_key="x", declare=[])
    assert work.run() == Dispatched(sent=1)
    with app.connection_for_write() as connection:
        connection.default_channel.exchange_delete(exchange)
    ids = [send_due(delayed) for _ in range(3)]
    lost = send_due(delayed, exchange=exchange, routing_key="x", declare=[])
    ids += [send_due(delayed) for _ in range(3)]
    # RabbitMQ closes the channel for all; which one it was shows when they go one by one.
    assert work.run() == Dispatched(sent=6, failed=1)
    assert set(broker.take_ids(app.conf.task_default_queue)) == set(ids)
    assert [entry.id for entry in delayed.list()] == [lost]
    work.close()
