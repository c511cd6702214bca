"""DispatchLoop: a leader also sends entries of a dead dispatcher, and a broken shard does not block others."""

import pytest
import redis

from redis_queue import DelayQueue
from redis_queue.celery import Dispatcher, DispatchLoop, DurableTasks
from redis_queue.delay.model import Dispatched
from tests.support.celery.brokers import Broker, ManualClock
from tests.support.celery.dispatch import running
from tests.support.wait import wait_until

pytestmark = [pytest.mark.parametrize("broker", ["redis", "another redis", "rabbitmq"], indirect=True)]


def test_entries_of_a_dead_dispatcher_are_sent_without_the_beat_task(
    broker: Broker, redis_url: str, client: object
) -> None:
    app = broker.app(redis_queue_url=redis_url)
    delayed = DurableTasks(app, leases=False)
    result = app.send_task("shop.remind", countdown=60)
    assert delayed.run_now(result.id)
    past = ManualClock()
    past.advance(-1)
    assert delayed.reschedule(result.id, eta=past.after(-300))
    past.advance(-120)
    assert [entry.id for entry in DelayQueue("scheduled", redis_url, clock=past).claim()] == [result.id]
    loop = DispatchLoop(app)
    with running(loop):
        wait_until(lambda: loop.total.sent == 1, description="the entry to be sent")
    assert broker.take_ids(app.conf.task_default_queue) == [result.id]


def test_broken_shard_does_not_block_other_shards(
    broker: Broker, redis_url: str, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    app = broker.app(redis_queue_url=redis_url, redis_queue_shards=3)
    delayed = DurableTasks(app, leases=False)
    ids = {app.send_task("shop.remind", countdown=60).id for _ in range(20)}
    shards = delayed.queue._shards
    broken = {id_ for id_ in ids if delayed.queue._shards.of(id_) is shards[0]}
    # A put-back, with which a leader begins, a claim and a move need them.
    for key in (shards[0].keys.in_flight, shards[0].keys.errors):
        client.set(key, "something else")
    for id_ in ids:
        assert delayed.run_now(id_)
    loop = DispatchLoop(app)
    with running(loop):
        wait_until(lambda: loop.total.sent == len(ids - broken), description="the others to be sent")
        wait_until(lambda: "cannot" in caplog.text and "another Redis type" in caplog.text, description="a warning")
    assert set(broker.take_ids(app.conf.task_default_queue)) == ids - broken


def test_run_that_ends_at_its_time_limit_is_followed_by_another_at_once(
    broker: Broker, redis_url: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(dispatcher: Dispatcher, _budget: float, *, due: bool) -> Dispatched:
        """Stop after the first batch, as at the time limit."""
        return dispatcher.run_once(due=due)

    monkeypatch.setattr(Dispatcher, "run", run)
    app = broker.app(redis_queue_url=redis_url, redis_queue_dispatch_batch=1, redis_queue_dispatch_interval=60)
    delayed = DurableTasks(app, leases=False)
    ids = {app.send_task("shop.remind", countdown=60).id for _ in range(5)}
    for id_ in ids:
        assert delayed.run_now(id_)
    loop = DispatchLoop(app)
    with running(loop):
        wait_until(lambda: loop.total.sent == len(ids), description="all to be sent without a pause of an interval")
    assert set(broker.take_ids(app.conf.task_default_queue)) == ids
