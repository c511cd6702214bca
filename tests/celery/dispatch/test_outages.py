"""Dispatcher: no entry is lost if the broker or the store is unavailable, or if a dispatcher dies."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from celery.signals import before_task_publish
from kombu.exceptions import OperationalError

from redis_queue import CancelOutcome, DelayQueue, StoreRefusedError, StoreUnavailableError
from redis_queue.celery import Dispatched, Dispatcher, TaskCall, push_task
from redis_queue.celery.stored_tasks import StoredTasks
from tests.support.celery.brokers import Broker, ManualClock
from tests.support.celery.processes import DispatchProcess
from tests.support.ports import HOST, free_port
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

LEASE = 60.0
CALLS = 150


@pytest.fixture
def proxy(broker: Broker) -> Iterator[FaultProxy]:
    """A proxy in front of the broker."""
    with FaultProxy(broker.address) as proxy:
        yield proxy


@pytest.fixture
def app(broker: Broker, proxy: FaultProxy) -> Celery:
    return broker.app(broker_url=broker.url_at(proxy.port))


def interrupt(proxy: FaultProxy) -> None:
    """Reset all connections and refuse new ones."""
    proxy.mode = "refuse"
    proxy.cut()


@contextmanager
def before_publish(number: int, action: Callable[[], None]) -> Iterator[None]:
    """Call *action* before publish *number*, counted from 0."""
    seen: list[str] = []

    def count(sender: str, **_: Any) -> None:
        if len(seen) == number:
            action()
        seen.append(sender)

    before_task_publish.connect(count)
    try:
        yield
    finally:
        before_task_publish.disconnect(count)


def push(queue: DelayQueue, count: int, **options: Any) -> list[str]:
    """Store *count* calls that are due now; return their ids in due order."""
    return queue.push_many([TaskCall("shop.remind", [number], options=options).payload() for number in range(count)])


def deliveries(queue: DelayQueue) -> list[int]:
    return [entry.deliveries for entry in queue]


@pytest.mark.parametrize("broker", ["another redis", "rabbitmq"], indirect=True)
class TestUnavailableBroker:
    def test_from_the_start_keeps_all_entries_due_and_uncounted(self, broker: Broker, queue: DelayQueue) -> None:
        ids = push(queue, 3)
        nowhere = broker.app(broker_url=broker.url_at(free_port()))

        for _ in range(2):
            with pytest.raises(OperationalError):
                Dispatcher(nowhere, queue).run()
            assert (queue.stats().due, queue.stats().in_flight) == (3, 0)
            assert deliveries(queue) == [0, 0, 0]

        app = broker.app()
        assert Dispatcher(app, queue).run() == Dispatched(sent=3)
        assert broker.take_ids(app.conf.task_default_queue) == ids

    @pytest.mark.parametrize("options", [{}, {"retry": False}], ids=["with retries", "without retries"])
    def test_between_two_runs_gets_all_entries_afterwards(
        self,
        *,
        app: Celery,
        proxy: FaultProxy,
        broker: Broker,
        queue: DelayQueue,
        default: str,
        options: dict[str, Any],
    ) -> None:
        push_task(queue, "shop.remind", id="first")
        work = Dispatcher(app, queue)
        work.run()
        ids = push(queue, 3, **options)

        interrupt(proxy)
        for _ in range(2):
            with pytest.raises(OperationalError):
                work.run()
            assert (queue.stats().due, queue.stats().in_flight) == (3, 0)
        assert deliveries(queue) == [0, 0, 0]
        proxy.mode = "pass"

        assert work.run() == Dispatched(sent=3)
        assert broker.take_ids(default) == ["first", *ids]

    def test_during_a_batch_gets_all_of_it_afterwards(
        self, app: Celery, proxy: FaultProxy, broker: Broker, queue: DelayQueue, default: str
    ) -> None:
        ids = push(queue, 5)
        work = Dispatcher(app, queue)

        with before_publish(2, lambda: interrupt(proxy)), pytest.raises(OperationalError):
            work.run()
        assert broker.take_ids(default) == []
        assert [entry.id for entry in queue] == ids
        assert deliveries(queue) == [0] * 5
        assert (queue.stats().due, queue.stats().in_flight) == (5, 0)
        proxy.mode = "pass"

        assert work.run() == Dispatched(sent=5)
        assert broker.take_ids(default) == ids

    def test_and_of_the_store_gives_back_what_was_not_sent(
        self, app: Celery, proxy: FaultProxy, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any) -> None:
            raise StoreRefusedError("no permission")

        push(queue, 3)
        monkeypatch.setattr(DelayQueue, "ack_many", refuse)
        with before_publish(2, lambda: interrupt(proxy)), pytest.raises(StoreRefusedError):
            Dispatcher(app, queue).run()
        assert queue.stats().due > 0

    def test_during_the_next_claim_gets_that_batch_afterwards_too(
        self,
        *,
        app: Celery,
        proxy: FaultProxy,
        broker: Broker,
        queue: DelayQueue,
        default: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        ids = push(queue, 9)
        work = Dispatcher(app, queue, batch=3)
        claim, claims = queue.moves.claim_batch, []

        def claim_and_interrupt(limit: int = 1, **options: Any) -> Any:
            claims.append(limit)
            if len(claims) == 2:
                interrupt(proxy)
            return claim(limit, **options)

        monkeypatch.setattr(queue.moves, "claim_batch", claim_and_interrupt)
        with pytest.raises(OperationalError):
            work.run()
        stats = queue.stats()
        assert (stats.in_flight, deliveries(queue)) == (0, [0] * stats.due)
        proxy.mode = "pass"

        work.run()
        assert Counter(broker.take_ids(default)) >= Counter(ids)
        assert queue.stats().due == 0

    def test_for_a_moment_is_waited_for(
        self, app: Celery, proxy: FaultProxy, broker: Broker, queue: DelayQueue, default: str
    ) -> None:
        ids = push(queue, 5)

        with before_publish(2, proxy.cut):
            assert Dispatcher(app, queue).run() == Dispatched(sent=5)

        assert Counter(broker.take_ids(default)) >= Counter(ids)


class TestRedisBrokerThatRefusesWrites:
    @pytest.mark.parametrize(
        ("refuse", "accept"),
        [
            (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
            (("REPLICAOF", HOST, "1"), ("REPLICAOF", "NO", "ONE")),
        ],
        ids=["because it is full", "because it is a replica"],
    )
    def test_keeps_all_entries_due_and_uncounted_and_gets_them_afterwards(
        self, queue: DelayQueue, refuse: tuple[str, ...], accept: tuple[str, ...]
    ) -> None:
        ids = push(queue, 3)
        with RedisServer(tcp=True) as server, server.client() as admin, Broker(server.url) as broker:
            app = broker.app()
            admin.execute_command(*refuse)
            with pytest.raises(OperationalError):
                Dispatcher(app, queue).run()
            assert (queue.stats().due, queue.stats().in_flight) == (3, 0)
            assert deliveries(queue) == [0, 0, 0]
            admin.execute_command(*accept)

            assert Dispatcher(app, queue).run() == Dispatched(sent=3)
            assert broker.take_ids(app.conf.task_default_queue) == ids


@pytest.mark.parametrize("broker", ["another redis", "rabbitmq"], indirect=True)
class TestUnavailableStore:
    def test_is_a_clear_error(self, broker: Broker) -> None:
        with RedisServer(tcp=True) as server, server.client() as client:
            queue = DelayQueue("scheduled", client)
            push_task(queue, "shop.remind")
            server.kill()
            with pytest.raises(StoreUnavailableError, match="Redis"):
                Dispatcher(broker.app(), queue).run()

    def test_after_the_publish_sends_the_calls_again_with_the_same_ids(
        self, broker: Broker, redis_server: RedisServer, queue: DelayQueue, clock: ManualClock
    ) -> None:
        app = broker.app()
        ids = push(queue, 3)
        with FaultProxy(str(redis_server.socket)) as proxy:
            through = DelayQueue("scheduled", proxy.url, clock=clock)
            with before_publish(2, lambda: interrupt(proxy)), pytest.raises(StoreUnavailableError):
                Dispatcher(app, through).run()
        assert queue.stats().in_flight == 3

        clock.advance(LEASE)
        assert queue.put_back().returned == 3
        assert Dispatcher(app, queue).run() == Dispatched(sent=3)

        assert Counter(broker.take_ids(app.conf.task_default_queue)) == Counter([*ids, *ids])

    def test_for_a_moment_is_waited_for(
        self, broker: Broker, redis_server: RedisServer, queue: DelayQueue, clock: ManualClock
    ) -> None:
        app = broker.app()
        ids = push(queue, 3)
        with FaultProxy(str(redis_server.socket)) as proxy:
            through = DelayQueue("scheduled", proxy.url, clock=clock)
            # The ack is executed and its reply is lost: it must not count as a lost lease, and nothing is sent twice.
            with before_publish(2, lambda: proxy.drop_next_reply(matching=b"EVALSHA")):
                assert Dispatcher(app, through).run() == Dispatched(sent=3)

        assert queue.stats().in_flight == 0
        assert broker.take_ids(app.conf.task_default_queue) == ids


class TestKilledDispatcher:
    @pytest.mark.parametrize(
        ("broker", "dies", "published", "acked"),
        [
            pytest.param("redis", 0, 0, 0, id="redis, before the move"),
            pytest.param("redis", 1, CALLS, CALLS, id="redis, after the move"),
            pytest.param("rabbitmq", 0, 0, 0, id="rabbitmq, before the first publish"),
            pytest.param("rabbitmq", 1, CALLS, 0, id="rabbitmq, before the ack"),
        ],
        indirect=["broker"],
    )
    def test_its_calls_are_sent_by_the_next_dispatcher_with_the_same_ids(
        self,
        *,
        broker: Broker,
        queue: DelayQueue,
        clock: ManualClock,
        redis_url: str,
        dies: int,
        published: int,
        acked: int,
    ) -> None:
        ids = push(queue, CALLS)
        settings = broker.settings()
        with DispatchProcess(settings=settings, redis=redis_url, batch=500, dies=dies) as child:
            child.wait_until_ready()
            child.go()
            assert child.finish() == (-signal.SIGKILL, "")
        default: str = settings["task_default_queue"]
        first = broker.take_ids(default)
        assert len(first) == published
        assert (queue.stats().in_flight, queue.stats().due) == (len(ids) - acked, 0)

        app = broker.app(task_default_queue=default)
        assert Dispatcher(app, queue).run() == Dispatched()
        clock.advance(2 * LEASE)
        assert queue.put_back().returned == len(ids) - acked
        assert deliveries(queue) == [1] * (len(ids) - acked)
        assert Dispatcher(app, queue).run() == Dispatched(sent=len(ids) - acked)

        sent = Counter(first) + Counter(broker.take_ids(default))
        assert set(sent) == set(ids)
        assert sorted(sent.values()) == [1] * (len(ids) - published + acked) + [2] * (published - acked)
        assert (queue.stats().in_flight, len(queue)) == (0, 0)

    @pytest.mark.parametrize("broker", ["another redis", "rabbitmq"], indirect=True)
    def test_cancel_reports_its_calls_as_possibly_sent(
        self, broker: Broker, queue: DelayQueue, clock: ManualClock, redis_url: str
    ) -> None:
        (id_,) = push(queue, 1)
        settings = broker.settings()
        with DispatchProcess(settings=settings, redis=redis_url, batch=500, dies=1) as child:
            child.wait_until_ready()
            child.go()
            child.finish()
        clock.advance(2 * LEASE)
        assert queue.put_back().returned == 1
        default: str = settings["task_default_queue"]
        app = broker.app(task_default_queue=default, redis_queue_url=redis_url)
        assert StoredTasks.of(app).cancel(id_) is CancelOutcome.MAYBE_SENT
        assert queue.get(id_) is None
        assert broker.take_ids(default) == [id_]
