"""Admission: messages of flows wait in their groups, and a consumer takes what the limits admit."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
import redis
from celery import Celery, Task, _state, shared_task

from redis_queue import Flow
from redis_queue.admission.flows import Flows
from redis_queue.celery.admission.admission import Move
from redis_queue.celery.dispatch.dispatcher import Dispatcher
from redis_queue.celery.message.headers import FlowHeader
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.errors import InvalidValueError
from redis_queue.store.async_connection import AsyncCall, AsyncConnection
from redis_queue.store.script_files import load
from tests.support.celery.fetching import Taker, connected, wait_until_idle
from tests.support.celery.flows import KEYS, QUEUE, counts, flow_app, taken, taking_flows
from tests.support.servers import RedisServer
from tests.support.wait import must, wait_until


@pytest.fixture
def app(server: RedisServer) -> Iterator[Celery]:
    with flow_app(server) as app:
        yield app


def send(app: Celery, *calls: tuple[Any, ...], task: str = "work", **options: Any) -> None:
    for args in calls:
        app.tasks[task].apply_async(args, **options)


def declare(app: Celery, client: redis.Redis) -> Flows:
    """Write the limits of *app*, as a worker does."""
    flows = StoredTasks.of(app).flow
    flows.declare(app.conf.redis_queue_flow and StoredTasks.of(app).settings.flows)
    return flows


def define(app: Celery, kind: str, flow: Flow) -> None:
    """Define the task "one" in one of the ways that Celery knows."""

    def run(key: str = "a", number: int = 1) -> None: ...

    def run_bound(self: Any, key: str = "a", number: int = 1) -> None: ...

    class One(Task):  # type: ignore[misc]
        name = "one"
        run = run_bound

    One.flow = flow
    if kind == "class":
        app.register_task(One())
    elif kind == "shared":
        shared_task(name="one", flow=flow)(run)
    else:
        bind = kind == "bound"
        app.task(name="one", shared=False, bind=bind, flow=flow)(run_bound if bind else run)


class TestLimit:
    def test_no_more_messages_are_taken_than_places_are_free(self, server: RedisServer, client: redis.Redis) -> None:
        with taking_flows(server, {f"queue:{QUEUE}": {"limit": 3}}, processes=100) as (app, taker):
            send(app, *((str(number),) for number in range(5)))
            assert not client.exists(QUEUE)
            assert counts(client) == {"waiting": {"queue:flows": 5}}
            assert taken(taker) == [["0"], ["1"], ["2"]]
            assert counts(client) == {"running": {"queue:flows": 3}, "waiting": {"queue:flows": 2}, "held": 3}
            taker.messages.pop(0).ack()
            assert taken(taker) == [["1"], ["2"], ["3"]]
            taker.settle()
            assert taken(taker) == [["4"]]
            taker.settle()
            assert counts(client) == {}
            assert not client.keys("{redis_queue:flow}:list:*")

    def test_keys_count_apart_and_in_the_order_of_sending(
        self, app: Celery, connection: Any, client: redis.Redis
    ) -> None:
        send(app, ("a", 1), ("a", 2), ("b", 1), ("a", 3), ("b", 2), task="sync")
        taker = Taker(connection, [QUEUE], 100, processes=100)
        got = []
        for _ in range(3):
            now = taken(taker)
            assert len({key for key, _ in now}) == len(now)
            got += now
            taker.settle()
        assert sorted(got) == [["a", 1], ["a", 2], ["a", 3], ["b", 1], ["b", 2]]
        assert [number for key, number in got if key == "a"] == [1, 2, 3]
        assert counts(client) == {}

    @pytest.mark.parametrize("key", ["{key}", lambda key="a", *_, **__: f"{key}"], ids=["text", "function"])
    @pytest.mark.parametrize("kind", ["function", "bound", "shared", "class"])
    def test_the_key_of_a_call_is_that_of_its_arguments(
        self, app: Celery, connection: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, *, kind: str, key: Any
    ) -> None:
        # Apps of other tests must not get the shared task.
        monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
        monkeypatch.setattr(_state, "_get_active_apps", lambda: [app])
        define(app, kind, Flow(limit=1, key=key))
        task = app.tasks["one"]
        for args, kwargs in (((), {}), (("b", 1), {}), (("a", 2), {}), ((), {"number": 3, "key": "a"})):
            task.apply_async(args, kwargs)
        taker = Taker(connection, [QUEUE], 100, processes=100)
        got = []
        for _ in range(3):
            got.append(taken(taker))
            taker.settle()
        assert [sorted(now) for now in got] == [[[], ["b", 1]], [["a", 2]], [[]]]
        assert counts(client) == {}

    def test_the_limits_of_task_and_queue_both_hold(self, server: RedisServer, client: redis.Redis) -> None:
        with taking_flows(server, {f"queue:{QUEUE}": {"limit": 2}}, processes=100) as (app, taker):
            send(app, ("a",), ("b",), ("c",), task="sync")
            send(app, ("x",), ("y",))
            got = []
            for _ in range(3):
                got += taken(taker)
                assert len(taker.messages) <= 2
                taker.settle()
            assert sorted(key for key, *_ in got) == ["a", "b", "c", "x", "y"]
            assert counts(client) == {}

    def test_a_worker_takes_no_more_than_it_can_start(self, server: RedisServer, client: redis.Redis) -> None:
        with taking_flows(server, {f"queue:{QUEUE}": {"limit": 50}}, processes=4) as (app, taker):
            send(app, *((str(number),) for number in range(20)))
            assert len(taker.take(4)) == 4
            assert counts(client)["running"] == {"queue:flows": 4}

    def test_priorities_come_first(self, server: RedisServer) -> None:
        with taking_flows(server, {f"queue:{QUEUE}": {"limit": 1}}) as (app, taker):
            for number, priority in enumerate([9, 0, 3, 0]):
                send(app, ("", number), priority=priority)
            got = []
            for _ in range(4):
                got += taken(taker)
                taker.settle()
            assert [number for _, number in got] == [1, 3, 2, 0]

    def test_messages_without_a_flow_and_those_with_one_take_turns(self, app: Celery, connection: Any) -> None:
        send(app, *(("plain", number) for number in range(20)))
        send(app, *((str(number),) for number in range(5)), task="sync")
        taker = Taker(connection, [QUEUE], 4)
        taker.leases.admission.in_use = True
        seen = []
        while len(seen) < 12:
            seen += taken(taker)
            taker.settle()
        assert sum(row[0] != "plain" for row in seen[:12]) >= 4

    def test_empty_lists_are_left_out_while_messages_of_flows_wait(
        self, server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def scripts() -> int:
            stats: Any = client.info("commandstats")
            return int(stats["cmdstat_evalsha"]["calls"])

        spent = {}
        for seconds in (0.0, 1000.0):
            monkeypatch.setattr("redis_queue.celery.fetch.fetch.LISTS_WITHIN", seconds)
            with taking_flows(server, prefetch=1) as (app, taker):
                send(app, *(("k", number) for number in range(20)), task="sync")
                taker.leases.admission.in_use = True
                assert taken(taker)
                before = scripts()
                for _ in range(18):
                    taker.settle()
                    assert taken(taker)
                spent[seconds] = scripts() - before
                taker.settle()
                taken(taker)
                taker.settle()
        # One for each task instead of two.
        assert spent[0.0] - spent[1000.0] >= 15

    def test_lists_that_were_left_out_are_looked_at_when_flows_have_nothing(
        self, server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("redis_queue.celery.fetch.fetch.LISTS_WITHIN", 1000.0)
        with flow_app(server, {"sync": {"limit": 2}}) as app, connected(server) as one, connected(server) as two:
            send(app, ("k", 1), ("k", 2), task="sync")
            taker, other = Taker(one, [QUEUE], 1), Taker(two, [QUEUE], 2)
            for each in (taker, other):
                each.leases.admission.in_use = True
            taker.take(1)
            other.take(1)
            # It expects the message that the other one has.
            assert taker.leases.admission.left
            taker.settle()
            send(app, ("plain", 3))
            assert taker.take(2)[1][0] == ["plain", 3]
            for each in (taker, other):
                each.settle()

    def test_an_idle_consumer_is_woken_by_a_message(self, server: RedisServer) -> None:
        with flow_app(server) as app, connected(server) as one, connected(server) as two:
            takers = [Taker(one, [QUEUE], 100), Taker(two, [QUEUE], 100)]
            for number in range(4):
                fetches = [wait_until_idle(taker) for taker in takers]
                for fetch in fetches:
                    # Only a wake-up helps.
                    fetch.look_at = float("inf")
                send(app, ("k", number), task="sync")

                def woken() -> bool:
                    for taker in takers:
                        taker.turn()
                    return any(taker.messages for taker in takers)

                wait_until(woken, description="a consumer to take the message")
                for taker in takers:
                    taker.settle()


class TestRate:
    def test_starts_are_spread_by_the_clock_of_redis(self, server: RedisServer, client: redis.Redis) -> None:
        with taking_flows(server, {f"queue:{QUEUE}": {"rate": "20/s", "burst": 2}}, processes=100) as (app, taker):
            send(app, *((str(number),) for number in range(8)))
            taker.take(8)
            index: Any = client.zrange("unacked_index", 0, -1, withscores=True)
            times = sorted(score for _, score in index)
            for first in range(8):
                for last in range(first, 8):
                    window = times[last] - times[first]
                    assert last - first + 1 <= 2 + 20 * window + 1e-3, (first, last, times)
            # Two at once, then one each 50 ms; a poll would take longer.
            assert 6 * 0.05 - 0.01 < times[-1] - times[0] < 3

    def test_each_key_has_its_own_rate(self, server: RedisServer, client: redis.Redis) -> None:
        with taking_flows(server, {"work": {"rate": "1/h", "key": "{key}"}}, processes=100) as (app, taker):
            send(app, ("a", 1), ("a", 2), ("b", 1), ("c", 1), ("c", 2))
            taker.take(3)
            taker.settle()
            assert taken(taker) == []
            assert counts(client) == {"waiting": {"queue:flows": 2, "work": 2}}
            assert client.zcard(KEYS.rates.decode()) == 3
            # A faster rate holds at once.
            StoredTasks.of(app).flow.set("work", rate="1000/s")
            taker.take(5)


class TestTurns:
    def test_keys_take_turns(self, server: RedisServer) -> None:
        with taking_flows(server, {f"queue:{QUEUE}": {"fair": "{key}"}}, processes=4) as (app, taker):
            send(app, *(("big", number) for number in range(300)))
            for key in "bcdefghij":
                send(app, *((key, number) for number in range(10)))
            order: list[str] = []
            while len(order) < 390:
                order += [key for key, _ in taken(taker)]
                taker.settle()
            last = max(place for place, key in enumerate(order) if key != "big")
            assert last < 10 * 10 + 4

    def test_a_key_that_sends_one_by_one_does_not_pass_the_others(self, server: RedisServer) -> None:
        with taking_flows(server, {f"queue:{QUEUE}": {"fair": "{key}"}}) as (app, taker):
            send(app, *(("big", number) for number in range(40)))
            order = []
            for _ in range(20):
                send(app, ("small", 0))
                order += [key for key, _ in taken(taker)]
                taker.settle()
            assert order.count("big") >= 8

    def test_a_key_that_comes_back_does_not_pass_the_others(self, server: RedisServer) -> None:
        with taking_flows(server, {f"queue:{QUEUE}": {"fair": "{key}", "limit": 1}}) as (app, taker):
            send(app, *(("big", number) for number in range(20)), ("small", 0))
            order: list[str] = []
            while len(order) < 20:
                now = [key for key, _ in taken(taker)]
                order += now
                taker.settle()
                if "small" in now:
                    send(app, ("small", 0))
            # A settled message is followed by the next one at once: two of them for one that is sent afterwards.
            assert 0 < order.count("small") <= 8

    @pytest.mark.parametrize("flow", [f"queue:{QUEUE}", "sync"])
    def test_weights(self, server: RedisServer, client: redis.Redis, flow: str) -> None:
        with taking_flows(server, {flow: {"fair": "{key}", "weights": {"gold": 3}}}) as (app, taker):
            declare(app, client)
            for key in ("gold", "iron"):
                send(app, *((key, number) for number in range(40)), task="sync" if flow == "sync" else "work")
            order = []
            for _ in range(40):
                order += [key for key, _ in taken(taker)]
                taker.settle()
            assert 28 <= order[:40].count("gold") <= 32

    def test_tasks_without_the_argument_share_a_turn(self, server: RedisServer, client: redis.Redis) -> None:
        flows = {f"queue:{QUEUE}": {"fair": "{tenant}", "limit_each": 1}}
        with taking_flows(server, flows, processes=100) as (app, taker):
            send(app, ("a",), ("b",))
            assert taken(taker) == [["a"], ["b"]]
            assert counts(client)["running"] == {"queue:flows": 2}


class TestPause:
    def test_a_paused_queue_gives_nothing_away(self, app: Celery, connection: Any, client: redis.Redis) -> None:
        flows = StoredTasks.of(app).flow
        flows.pause(f"queue:{QUEUE}")
        send(app, ("plain",))
        send(app, ("of a flow",), task="sync")
        taker = Taker(connection, [QUEUE], 100, processes=2)
        assert taken(taker) == []
        assert (client.llen(QUEUE), counts(client)) == (1, {"waiting": {"queue:flows": 1, "sync": 1}})
        # Only a wake-up helps.
        wait_until_idle(taker).look_at = float("inf")
        flows.resume(f"queue:{QUEUE}")
        taker.take(2)

    def test_a_paused_task_waits_while_others_run(
        self, app: Celery, connection: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flows = StoredTasks.of(app).flow
        send(app, ("a",), task="sync")
        flows.pause("sync")
        send(app, ("plain",))
        taker = Taker(connection, [QUEUE], 100, processes=10)
        assert taken(taker) == [["plain"]]
        # A resume that is cut off is completed by the next one.
        with monkeypatch.context() as cut:
            cut.setattr(flows, "_look_again", lambda _: None)
            flows.resume("sync")
        flows.resume("sync")
        taker.take(2)


class TestRedelivery:
    def test_a_returned_message_goes_behind_the_others_of_its_group(
        self, app: Celery, connection: Any, client: redis.Redis
    ) -> None:
        send(app, ("a", 1), ("a", 2), task="sync")
        taker = Taker(connection, [QUEUE], 100)
        assert taken(taker) == [["a", 1]]
        (message,) = taker.messages
        message.reject(requeue=True)
        taker.messages.clear()
        assert taken(taker) == [["a", 2]]
        taker.settle()
        assert taken(taker) == [["a", 1]]
        assert taker.messages[0].headers["redelivered"] is True
        taker.settle()
        assert counts(client) == {}

    def test_messages_of_a_closed_connection_come_first_again(
        self, app: Celery, connection: Any, server: RedisServer, client: redis.Redis
    ) -> None:
        send(app, ("a", 1), ("a", 2), task="sync")
        taker = Taker(connection, [QUEUE], 100)
        assert taken(taker) == [["a", 1]]
        taker.channel.close()
        assert counts(client) == {"waiting": {"queue:flows": 2, "sync": 2}}
        with connected(server) as other:
            taker = Taker(other, [QUEUE], 100)
            assert taken(taker) == [["a", 1]]
            taker.settle()
            assert taken(taker) == [["a", 2]]

    def test_two_sweeps_return_a_message_once(self, app: Celery, connection: Any, client: redis.Redis) -> None:
        send(app, ("a", 1), task="sync")
        taker = Taker(connection, [QUEUE], 100)
        assert taken(taker) == [["a", 1]]
        (tag,) = client.hkeys("unacked")
        record = must(client.hget("unacked", tag))
        message = json.loads(record)[0]
        header = must(FlowHeader.of(message["headers"]))
        move = Move(tag.decode(), "id", json.dumps(message).encode(), QUEUE, 0, header)
        records = taker.channel.qos._records
        assert not records.return_waiting(move, record, last=False, ended=True)
        assert [records.return_waiting(move, record, last=False) for _ in range(2)] == [True, False]
        assert counts(client) == {"waiting": {"queue:flows": 1, "sync": 1}}
        taker.leases.held.clear()

    def test_a_message_that_a_stock_worker_returned_waits_for_admission(
        self, app: Celery, connection: Any, client: redis.Redis
    ) -> None:
        send(app, ("a", 1), ("a", 2), task="sync")
        taker = Taker(connection, [QUEUE], 100)
        assert taken(taker) == [["a", 1]]
        # What kombu does: it pushes the message, and removes its record.
        (tag,) = client.hkeys("unacked")
        record = must(client.hget("unacked", tag))
        client.lpush(QUEUE, json.dumps(json.loads(record)[0]))
        client.hdel("unacked", tag)
        client.zrem("unacked_index", tag)
        taker.messages.clear()
        taker.leases.held.clear()
        taker.channel.qos._swept_at = 0.0
        taker.channel.qos.restore_visible()
        got = []
        for _ in range(2):
            got += [message for message in taken(taker) if message not in got]
            taker.settle()
        assert sorted(got) == [["a", 1], ["a", 2]]
        assert counts(client) == {}
        assert not client.exists(QUEUE)

    def test_a_delayed_task_waits_for_admission_when_it_is_due(
        self, app: Celery, connection: Any, client: redis.Redis
    ) -> None:
        send(app, ("a", 1), task="sync")
        send(app, ("a", 2), task="sync", countdown=0.001)
        dispatcher = Dispatcher(app, StoredTasks.of(app).queue)
        while not client.exists(QUEUE):
            dispatcher.run()
        dispatcher.close()
        taker = Taker(connection, [QUEUE], 10, processes=10)
        assert taken(taker) == [["a", 1]]
        taker.settle()
        assert taken(taker) == [["a", 2]]
        taker.settle()
        assert counts(client) == {}

    def test_delayed_tasks_stay_in_flight_if_the_connection_is_lost_before_they_wait(
        self, app: Celery, connection: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def send_calls(on: AsyncConnection, calls: Sequence[AsyncCall]) -> None:
            if any(load("admission/restore").sha in call.command for call in calls):
                raise redis.ConnectionError("lost")
            original(on, calls)

        original = AsyncConnection.send
        monkeypatch.setattr(AsyncConnection, "send", send_calls)
        send(app, ("a", 1), ("a", 2), task="sync", countdown=0.001)
        with closing(Dispatcher(app, StoredTasks.of(app).queue)) as dispatcher:
            while client.llen(QUEUE) < 2:  # type: ignore[operator]
                dispatcher.run()
        taker = Taker(connection, [QUEUE], 10, processes=10)
        with pytest.raises(redis.ConnectionError):
            taken(taker)
        assert (client.hlen("unacked"), client.exists("redis_queue:unreadable")) == (2, 0)


class TestBadCalls:
    @pytest.mark.parametrize("key", [["list"], "x" * 300, "a\0b", ""])
    def test_a_bad_key_raises_before_anything_is_sent(
        self, server: RedisServer, client: redis.Redis, key: object
    ) -> None:
        flows = {"work": {"limit": 1, "key": "{key}"}}
        with flow_app(server, flows) as app:
            with pytest.raises(InvalidValueError, match="key"):
                send(app, (key,))
            assert counts(client) == {}

    def test_an_app_without_the_task_needs_the_argument_by_keyword(
        self, server: RedisServer, client: redis.Redis
    ) -> None:
        with flow_app(server, {"elsewhere": {"limit": 1, "key": "{shop}"}}) as app:
            with pytest.raises(InvalidValueError, match="pass 'shop' by keyword"):
                app.send_task("elsewhere", (5,))
            app.send_task("elsewhere", kwargs={"shop": 5})
            assert counts(client)["waiting"] == {"elsewhere": 1, "queue:flows": 1}

    def test_messages_wait_in_a_store_elsewhere(self, server: RedisServer, client: redis.Redis) -> None:
        with RedisServer() as other, flow_app(server, redis_queue_url=other.url) as app, other.client() as store:
            send(app, ("a",), task="sync")
            assert counts(store) == {"waiting": {"queue:flows": 1, "sync": 1}}
            assert not client.keys()
