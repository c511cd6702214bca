"""A leading dispatcher also sends what a dead one held."""

from __future__ import annotations

import threading

import pytest

from redis_queue import DelayQueue
from redis_queue.celery import DelayedTasks, DispatchLoop
from tests.celery.brokers import Broker
from tests.celery.clocks import ManualClock
from tests.support.wait import wait_until

pytestmark = [
    pytest.mark.celery,
    pytest.mark.parametrize("broker", ["redis", "another redis", "rabbitmq"], indirect=True),
]


def test_what_a_dead_dispatcher_held_is_sent_without_the_beat_task(
    broker: Broker, redis_url: str, client: object
) -> None:
    app = broker.app(redis_queue_url=redis_url)
    delayed = DelayedTasks(app)
    result = app.send_task("shop.remind", countdown=60)
    assert delayed.run_now(result.id)
    past = ManualClock()
    past.advance(-1)
    assert delayed.reschedule(result.id, eta=past.after(-300))
    past.advance(-120)
    assert [entry.id for entry in DelayQueue("celery", redis_url, clock=past).claim()] == [result.id]
    loop = DispatchLoop(app)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        wait_until(lambda: loop.total.sent == 1, description="the entry to be sent")
    finally:
        loop.stop()
        thread.join()
    assert broker.take_ids(app.conf.task_default_queue) == [result.id]
