"""Dispatcher: due entries become messages in Celery queues, with all options of the push."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery, Task
from celery_singleton import Singleton

from redis_queue import DelayQueue, InvalidValueError
from redis_queue.celery import Dispatched, Dispatcher, DurableTasks, push_task
from redis_queue.celery.brokers.amqp import AmqpBroker
from redis_queue.celery.brokers.redis import RedisBroker
from redis_queue.celery.dispatch import delivery, dispatcher, outcome
from redis_queue.delay.model import Claim, Push
from tests.support.celery.brokers import Broker, ManualClock, declared, exchange_of
from tests.support.celery.processes import DispatchProcess
from tests.support.celery.tenants import HEADER, TenantTask, single_task, work
from tests.support.wait import must, wait_until


@pytest.fixture
def app(broker: Broker) -> Celery:
    return broker.app()


def call(number: int = 0, **options: Any) -> dict[str, Any]:
    return {"task": "shop.remind", "args": [number], "kwargs": {}, "options": options}


class TestMessage:
    def test_has_name_arguments_and_the_entrys_id_as_task_id(
        self, app: Celery, broker: Broker, queue: DelayQueue, default: str
    ) -> None:
        id_ = push_task(queue, "shop.remind", [42, "№"], {"tone": "kind"})

        assert Dispatcher(app, queue).run_once() == Dispatched(sent=1)

        (message,) = broker.take(default)
        assert message.headers["id"] == id_
        assert message.properties["correlation_id"] == id_
        assert message.headers["task"] == "shop.remind"
        assert message.payload[:2] == [[42, "№"], {"tone": "kind"}]
        assert message.headers["eta"] is None
        assert queue.stats().in_flight == 0
        assert queue.get(id_) is None

    def test_is_made_by_the_apply_async_of_its_task(
        self, app: Celery, broker: Broker, queue: DelayQueue, default: str
    ) -> None:
        app.task(base=TenantTask, name="shop.remind", shared=False)(work)
        id_ = push_task(queue, "shop.remind", [42], headers={"source": "test"})
        assert Dispatcher(app, queue).run_once() == Dispatched(sent=1)
        (message,) = broker.take(default)
        assert (message.headers["id"], message.headers[HEADER], message.headers["source"]) == (id_, "none", "test")
        assert len(broker.take(f"{default}-audit")) == 1

    def test_that_its_task_refuses_keeps_no_other_waiting(
        self, app: Celery, broker: Broker, queue: DelayQueue, default: str
    ) -> None:
        class Broken(Task):  # type: ignore[misc]
            def apply_async(self, *_: Any, **__: Any) -> Any:
                raise OSError("its own database is away")

        app.task(base=Broken, name="shop.broken", shared=False)(work)
        broken = push_task(queue, "shop.broken")
        push_task(queue, "shop.remind")
        assert Dispatcher(app, queue).run_once() == Dispatched(sent=1, failed=1)
        assert len(broker.take(default)) == 1
        assert must(queue.get(broken)).deliveries == 1

    def test_that_its_task_does_not_send_becomes_a_dead_letter(
        self, app: Celery, broker: Broker, queue: DelayQueue, default: str, redis_url: str
    ) -> None:
        task = single_task(app, redis_url, "shop.remind", Singleton)
        ids = [push_task(queue, "shop.remind", [42], delay=number) for number in (1, 2)]
        assert [queue.run_now(id_) for id_ in ids] == [True, True]
        assert Dispatcher(app, queue).run_once() == Dispatched(sent=1, failed=1)
        assert len(broker.take(default)) == 1
        (letter,) = queue.dead_letters()
        assert "its apply_async did not send it" in letter.reason
        task.release_lock([42])

    def test_carries_its_options(self, app: Celery, broker: Broker, queue: DelayQueue) -> None:
        mail = broker.name("mail")
        push_task(
            queue,
            "shop.remind",
            id="order-42",
            queue=mail,
            priority=7,
            serializer="pickle",
            compression="gzip",
            headers={"tenant": "acme"},
            expires=60,
            time_limit=30,
            soft_time_limit=20,
            reply_to="somebody",
            shadow="remind of order 42",
            ignore_result=True,
            retry=False,
            retry_policy={"max_retries": 1},
        )
        before = datetime.now(timezone.utc)

        Dispatcher(app, queue).run_once()

        (message,) = broker.take(mail)
        assert message.headers["id"] == "order-42"
        assert message.properties["priority"] == 7
        assert message.content_type == "application/x-python-serialize"
        assert message.headers["compression"] == "application/x-gzip"
        assert message.headers["tenant"] == "acme"
        assert message.headers["timelimit"] == [30, 20]
        assert message.properties["reply_to"] == "somebody"
        assert message.headers["shadow"] == "remind of order 42"
        assert message.headers["ignore_result"] is True
        expires = datetime.fromisoformat(message.headers["expires"]) - before
        assert timedelta(seconds=60) <= expires < timedelta(seconds=90)

    def test_uses_its_exchange_and_routing_key(self, broker: Broker, queue: DelayQueue) -> None:
        mail, events = broker.name("mail"), broker.name("events")
        broker.bind(mail, events, "order.late")
        push_task(queue, "shop.remind", exchange=events, routing_key="order.late")

        Dispatcher(broker.app(), queue).run_once()

        (message,) = broker.take(mail)
        assert message.delivery_info["exchange"] == events
        assert message.delivery_info["routing_key"] == "order.late"

    @pytest.mark.parametrize("most", [3, 2], ids=["in one step", "to more than one step takes"])
    def test_reaches_all_queues_of_its_exchange(
        self, app: Celery, broker: Broker, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch, most: int
    ) -> None:
        monkeypatch.setattr("redis_queue.celery.brokers.redis.MAX_LISTS", most)
        events, names = broker.name("events"), [broker.name(f"mail{number}") for number in range(3)]
        for name in names:
            broker.bind(name, events, "order.late")
        ids = [push_task(queue, "shop.remind", exchange=events, routing_key="order.late") for _ in range(2)]

        assert Dispatcher(app, queue).run_once() == Dispatched(sent=2)

        assert [broker.take_ids(name) for name in names] == [ids] * 3

    def test_uses_the_topic_exchange_of_its_queue(self, broker: Broker, queue: DelayQueue) -> None:
        mail, events = broker.name("mail"), broker.name("events")
        app = broker.app(task_queues=[declared(mail, exchange_of(events, "topic"), routing_key="order.*")])
        push_task(queue, "shop.remind", queue=mail, routing_key="order.late")

        Dispatcher(app, queue).run_once()

        (message,) = broker.take(mail)
        assert message.delivery_info["exchange"] == events
        assert message.delivery_info["routing_key"] == "order.late"

    def test_follows_the_routes_of_the_app(self, broker: Broker, queue: DelayQueue) -> None:
        mail, slow = broker.name("mail"), broker.name("slow")
        app = broker.app(task_routes={"shop.*": {"queue": mail, "priority": 4}})
        push_task(queue, "shop.remind", id="routed")
        push_task(queue, "shop.remind", id="told", queue=slow)
        push_task(queue, "other.task", id="other")

        Dispatcher(app, queue).run_once()

        (routed,) = broker.take(mail)
        assert (routed.headers["id"], routed.properties["priority"]) == ("routed", 4)
        assert broker.take_ids(slow) == ["told"]
        assert broker.take_ids(app.conf.task_default_queue) == ["other"]

    def test_expires_counted_from_the_dispatch(
        self, app: Celery, broker: Broker, queue: DelayQueue, clock: ManualClock, default: str
    ) -> None:
        push_task(queue, "shop.remind", delay=3600, expires=60)
        clock.advance(3600)
        before = datetime.now(timezone.utc)

        Dispatcher(app, queue).run_once()

        (message,) = broker.take(default)
        assert datetime.fromisoformat(message.headers["expires"]) >= before + timedelta(seconds=60)


class TestSelection:
    def test_nothing_is_sent_before_it_is_due(
        self, app: Celery, broker: Broker, queue: DelayQueue, clock: ManualClock, default: str
    ) -> None:
        push_task(queue, "shop.remind", id="soon", delay=10)
        push_task(queue, "shop.remind", id="later", delay=20)
        work = Dispatcher(app, queue)

        assert work.run() == Dispatched()
        clock.advance(9.999)
        assert work.run() == Dispatched()
        assert broker.take_ids(default) == []
        clock.advance(0.001)
        assert work.run() == Dispatched(sent=1)
        assert broker.take_ids(default) == ["soon"]
        assert [entry.id for entry in queue] == ["later"]
        clock.advance(10)
        assert work.run() == Dispatched(sent=1)
        assert broker.take_ids(default) == ["later"]

    def test_oldest_due_entry_is_sent_first(
        self, app: Celery, broker: Broker, queue: DelayQueue, clock: ManualClock, default: str
    ) -> None:
        for delay in (3, 1, 2):
            push_task(queue, "shop.remind", id=f"after {delay}", delay=delay)
        clock.advance(5)

        Dispatcher(app, queue).run()

        assert broker.take_ids(default) == ["after 1", "after 2", "after 3"]

    def test_of_calls_with_the_same_id_only_the_last_is_sent(
        self, app: Celery, broker: Broker, queue: DelayQueue, clock: ManualClock, default: str
    ) -> None:
        for number in range(3):
            push_task(queue, "shop.save", [number], id="form-7", delay=10)
            clock.advance(9)
        assert Dispatcher(app, queue).run() == Dispatched()
        clock.advance(1)
        assert Dispatcher(app, queue).run() == Dispatched(sent=1)

        (message,) = broker.take(default)
        assert (message.headers["id"], message.payload[0]) == ("form-7", [2])

    def test_cancelled_call_is_never_sent(
        self, app: Celery, broker: Broker, queue: DelayQueue, clock: ManualClock, default: str
    ) -> None:
        id_ = push_task(queue, "shop.remind", delay=10)
        assert queue.cancel(id_)
        clock.advance(60)

        assert Dispatcher(app, queue).run() == Dispatched()
        assert broker.take_ids(default) == []

    def test_call_replaced_during_its_publish_is_sent_again_with_its_new_contents(
        self,
        *,
        app: Celery,
        broker: Broker,
        client: redis.Redis,
        clock: ManualClock,
        default: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def claim_and_replace(*arguments: Any, **how: Any) -> Claim:
            claimed = claim(*arguments, **how)
            for entry in claimed.entries[:1]:
                push_task(queue, "shop.save", ["new"], id=entry.id, delay=5)
            return claimed

        queue, other = (DelayQueue("scheduled", client, clock=clock) for _ in range(2))
        claim = other.moves.claim_batch
        monkeypatch.setattr(other.moves, "claim_batch", claim_and_replace)
        push_task(queue, "shop.save", ["old"], id="form-7")

        Dispatcher(app, other).run_once()
        assert [entry.payload["args"] for entry in queue] == [["new"]]
        clock.advance(5)
        Dispatcher(app, queue).run_once()

        # If the Redis of the broker is also the store, a replaced call is not sent at all.
        old = [["old"]] if broker.url.startswith("amqp") else []
        assert [message.payload[0] for message in broker.take(default)] == [*old, ["new"]]

    def test_all_shards_of_a_queue_are_sent(
        self, app: Celery, broker: Broker, delayed: Callable[..., DelayQueue], default: str
    ) -> None:
        queue = delayed(shards=5)
        ids = queue.push_many([call(number) for number in range(60)])

        assert Dispatcher(app, queue, batch=7).run() == Dispatched(sent=60)
        assert sorted(broker.take_ids(default)) == sorted(ids)


class TestRun:
    def test_continues_until_nothing_is_due(self, app: Celery, broker: Broker, queue: DelayQueue, default: str) -> None:
        ids = queue.push_many([call(number) for number in range(230)])

        assert Dispatcher(app, queue, batch=50).run() == Dispatched(sent=230)
        assert broker.take_ids(default) == ids

    def test_continues_after_a_claim_that_ended_at_its_size_limit(
        self, app: Celery, broker: Broker, delayed: Callable[..., DelayQueue], default: str
    ) -> None:
        queue = delayed(max_body=2**20)
        ids = queue.push_many([{**call(), "args": ["x" * 300_000]}] * 9)

        assert Dispatcher(app, queue, batch=50).run() == Dispatched(sent=9)
        assert broker.take_ids(default) == ids

    def test_reads_no_more_entries_without_a_list_than_it_claims(
        self, app: Celery, queue: DelayQueue, client: redis.Redis
    ) -> None:
        queue.push_many([call(number) for number in range(200)])
        dispatcher = Dispatcher(app, queue, batch=10)
        assert dispatcher.run_once().sent == 10
        client.config_resetstat()
        assert dispatcher.run_once().sent == 10
        # A move before the claim sees the same entries.
        stats: Any = client.info("commandstats")
        assert stats["cmdstat_zrangebyscore"]["calls"] <= 2

    def test_ends_after_its_time_budget_and_leaves_the_rest_due(
        self, app: Celery, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue.push_many([call(number) for number in range(10)])
        ticks = iter(range(1000))
        for module in (dispatcher, delivery, outcome):
            monkeypatch.setattr(module, "monotonic", lambda: next(ticks) * 0.25)

        done = Dispatcher(app, queue, batch=2).run(budget=1)

        assert 0 < done.sent < 10
        assert (queue.stats().due, queue.stats().in_flight) == (10 - done.sent, 0)
        assert [entry.deliveries for entry in queue] == [0] * (10 - done.sent)

    def test_does_nothing_without_a_budget(self, app: Celery, queue: DelayQueue) -> None:
        push_task(queue, "shop.remind")

        assert Dispatcher(app, queue).run(budget=0) == Dispatched()
        assert queue.stats().due == 1

    def test_stops_at_half_of_the_lease_and_releases_the_rest_uncounted(
        self,
        app: Celery,
        broker: Broker,
        delayed: Callable[..., DelayQueue],
        default: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        queue = delayed(lease=60)
        ids = queue.push_many([call(number) for number in range(5)])
        for kind in (AmqpBroker, RedisBroker):
            monkeypatch.setattr(kind, "at_once", 1)
        # One reading at the claim, then one before each publish and one after it.
        looks = iter([0.0, 10.0, 11.0, 29.0, 30.0, 31.0])
        for module in (dispatcher, delivery, outcome):
            monkeypatch.setattr(module, "monotonic", lambda: next(looks))

        assert Dispatcher(app, queue).run_once() == Dispatched(sent=2)

        assert broker.take_ids(default) == ids[:2]
        assert queue.stats().in_flight == 0
        assert [(entry.id, entry.deliveries) for entry in queue.claim(10)] == [(id_, 1) for id_ in ids[2:]]

    @pytest.mark.parametrize("batch", [0, -1, 501, 1.5, True])
    def test_batch_size_is_limited_to_that_of_a_claim(self, queue: DelayQueue, batch: Any) -> None:
        with pytest.raises(InvalidValueError, match=r"batch="):
            Dispatcher(Celery("tests", set_as_current=False), queue, batch=batch)


class TestOverlap:
    def test_four_threads_send_each_call_once(
        self, app: Celery, broker: Broker, queue: DelayQueue, default: str
    ) -> None:
        ids = queue.push_many([call(number) for number in range(400)])
        start = threading.Barrier(4)

        def dispatch(_: int) -> int:
            start.wait(10)
            return Dispatcher(app, queue, batch=20).run().sent

        with ThreadPoolExecutor(4) as threads:
            assert sum(threads.map(dispatch, range(4))) == 400
        assert Counter(broker.take_ids(default)) == Counter(ids)
        assert queue.stats().in_flight == 0

    @pytest.mark.parametrize("broker", ["redis"], indirect=True)
    def test_three_processes_send_each_call_once(self, broker: Broker, queue: DelayQueue, redis_url: str) -> None:
        ids = queue.push_many([call(number) for number in range(600)])
        settings = broker.settings()
        with contextlib.ExitStack() as stack:
            children = [
                stack.enter_context(DispatchProcess(settings=settings, redis=redis_url, batch=20)) for _ in range(3)
            ]
            for child in children:
                child.wait_until_ready()
            for child in children:
                child.go()
            answers = [child.finish() for child in children]

        assert [code for code, _ in answers] == [0] * 3
        assert sum(int(sent) for _, sent in answers) == 600
        assert Counter(broker.take_ids(settings["task_default_queue"])) == Counter(ids)


class TestUnsendableEntry:
    @pytest.mark.parametrize("batch", [1, 100], ids=["claimed ahead", "in one batch"])
    @pytest.mark.parametrize(
        "payload",
        ["text", 5, None, [1], b"bytes", {}, {"task": ""}, {"task": "shop.remind", "options": {"countdown": 5}}],
        ids=repr,
    )
    def test_invalid_task_call_is_dead_at_once_and_blocks_no_others(
        self,
        *,
        app: Celery,
        broker: Broker,
        queue: DelayQueue,
        default: str,
        payload: Any,
        batch: int,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        queue.push_many([Push(call(1), id="before"), Push(payload, id="bad"), Push(call(2), id="after")])

        with caplog.at_level(logging.ERROR, "redis_queue"):
            assert Dispatcher(app, queue, batch=batch).run() == Dispatched(sent=2, failed=1)

        assert sorted(broker.take_ids(default)) == ["after", "before"]
        (dead,) = queue.dead_letters()
        assert (dead.id, dead.body) == ("bad", payload)
        assert dead.reason
        assert [record.entry_id for record in caplog.records] == ["bad"]  # type: ignore[attr-defined]
        assert len(queue) == 0

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"serializer": "nope"}, "SerializerNotInstalled: .*nope"),
            ({"compression": "nope"}, "KeyError: .*nope|nope"),
            ({"expires": "tomorrow"}, "ValueError"),
            ({"headers": "text"}, "ValueError|TypeError"),
            ({"queue": ["mail"]}, "TypeError"),
            ({"retry_policy": "often"}, "TypeError"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_call_that_celery_refuses_is_retried_later_and_blocks_no_others(
        self,
        *,
        app: Celery,
        broker: Broker,
        delayed: Callable[..., DelayQueue],
        clock: ManualClock,
        default: str,
        options: dict[str, Any],
        reason: str,
    ) -> None:
        queue = delayed(max_deliveries=3)
        queue.push_many([Push(call(**options), id="bad"), Push(call(1), id="good")])
        work = Dispatcher(app, queue)

        assert work.run() == Dispatched(sent=1, failed=1)
        assert broker.take_ids(default) == ["good"]
        (entry,) = queue.list()
        assert entry.id == "bad"
        assert clock.after(0) < entry.due_at <= clock.after(1)
        assert work.run() == Dispatched()

        clock.advance(1)
        assert work.run() == Dispatched(failed=1)
        (entry,) = queue.list()
        assert clock.after(1) < entry.due_at <= clock.after(2)

        clock.advance(2)
        assert work.run() == Dispatched(failed=1)
        assert len(queue) == 0
        (dead,) = queue.dead_letters()
        assert (dead.id, dead.deliveries) == ("bad", 3)
        assert re.search(reason, dead.reason), dead.reason

    def test_unknown_queue_is_refused_if_it_must_not_be_created(
        self, broker: Broker, delayed: Callable[..., DelayQueue]
    ) -> None:
        app = broker.app(task_create_missing_queues=False)
        queue = delayed(max_deliveries=1)
        push_task(queue, "shop.remind", queue="elsewhere")
        push_task(queue, "shop.remind", id="good")

        assert Dispatcher(app, queue).run() == Dispatched(sent=1, failed=1)
        (dead,) = queue.dead_letters()
        assert "queue 'elsewhere' is not in the app's configuration" in dead.reason

    @pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
    def test_missing_exchange_is_refused_with_confirms(
        self, broker: Broker, delayed: Callable[..., DelayQueue]
    ) -> None:
        app = broker.app(broker_transport_options={"confirm_publish": True})
        queue = delayed(max_deliveries=1)
        queue.push_many(
            [Push(call(exchange="test-no-such-exchange", routing_key="late"), id="bad"), Push(call(), id="good")]
        )

        assert Dispatcher(app, queue).run() == Dispatched(sent=1, failed=1)
        assert broker.take_ids(app.conf.task_default_queue) == ["good"]
        (dead,) = queue.dead_letters()
        assert dead.id == "bad"
        assert "test-no-such-exchange" in dead.reason

    @pytest.mark.parametrize("broker", ["redis"], indirect=True)
    def test_queue_whose_key_has_another_type_blocks_no_others(
        self, app: Celery, broker: Broker, queue: DelayQueue, client: redis.Redis, default: str
    ) -> None:
        client.hset("taken", "by", "something else")
        push_task(queue, "shop.remind", id="bad", queue="taken")
        push_task(queue, "shop.remind", id="good")

        assert Dispatcher(app, queue).run() == Dispatched(sent=1, failed=1)
        assert broker.take_ids(default) == ["good"]
        assert [entry.id for entry in queue] == ["bad"]

    def test_dead_call_is_sent_after_its_cause_was_fixed_and_a_redrive(
        self, broker: Broker, delayed: Callable[..., DelayQueue]
    ) -> None:
        queue, name = delayed(max_deliveries=1), broker.name("late")
        push_task(queue, "shop.remind", id="call", queue=name)
        strict = broker.app(task_create_missing_queues=False)
        assert Dispatcher(strict, queue).run() == Dispatched(failed=1)

        assert queue.redrive() == 1
        assert Dispatcher(broker.app(), queue).run() == Dispatched(sent=1)
        assert broker.take_ids(name) == ["call"]


def test_call_of_a_task_of_this_app_keeps_the_options_of_the_task(
    app: Celery, broker: Broker, queue: DelayQueue, default: str
) -> None:
    @app.task(name="shop.remind", shared=False, serializer="pickle", time_limit=30)  # type: ignore[untyped-decorator]
    def remind(order: str) -> None: ...

    push_task(queue, remind, ["42"], id="as declared")
    push_task(queue, remind, ["43"], id="as told", serializer="json", time_limit=10)

    Dispatcher(app, queue).run()

    found = {message.headers["id"]: message for message in broker.take(default)}
    assert {id_: message.headers["timelimit"][0] for id_, message in found.items()} == {
        "as declared": 30,
        "as told": 10,
    }
    assert {id_: message.content_type for id_, message in found.items()} == {
        "as declared": "application/x-python-serialize",
        "as told": "application/json",
    }


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_skew_of_an_hour_is_ignored(
    broker: Broker, redis_url: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    app = broker.app(redis_queue_url=redis_url)
    delayed = DurableTasks(app, leases=False)
    monkeypatch.setattr(app, "now", lambda: datetime.now(timezone.utc) + timedelta(hours=hours))
    soon, later = app.send_task("shop.remind", countdown=0.2), app.send_task("shop.remind", countdown=60)

    entry = must(delayed.get(later.id))
    assert abs(entry.due_at - datetime.now(timezone.utc) - timedelta(seconds=60)) < timedelta(seconds=10)
    work = Dispatcher(app, delayed.queue)
    wait_until(lambda: work.run().sent == 1, description="the first task to be due")
    (message,) = broker.take(app.conf.task_default_queue)
    assert message.headers["id"] == soon.id
    # A worker with a wrong clock would hold a message with an eta, or run it early.
    assert message.headers["eta"] is None
