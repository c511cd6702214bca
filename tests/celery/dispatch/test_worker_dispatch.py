"""The dispatch thread of a worker: punctual, robust against failures, and stopped with its worker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from tests.support.celery.brokers import Broker
from tests.support.celery.delaying_names import IMPORTED, STUBBORN
from tests.support.celery.fleet import Fleet, send
from tests.support.marks import thorough
from tests.support.servers import RedisServer
from tests.support.wait import wait_until


@pytest.fixture(
    params=["one redis", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("two redis", "rabbitmq"))]
)
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Store and broker in one Redis, in two Redis servers, or with RabbitMQ as the broker."""
    with RedisServer() as store, store.client() as client:
        socket = f"redis+socket://{store.socket}"
        urls = {"one redis": lambda: socket, "two redis": lambda: f"{socket}?virtual_host=1"}
        url = urls.get(request.param, lambda: request.getfixturevalue("rabbitmq_url"))()
        with Broker(url) as broker:
            queue = broker.name("delaying")
            broker.forget_later(f"{queue}-control.pidbox", f"{queue}-events")
            with closing(Fleet(store, client, url, queue)) as fleet:
                yield fleet


def leader(client: redis.Redis) -> bytes | None:
    found = client.get("{redis_queue:delay:scheduled:0}:leader")
    assert found is None or isinstance(found, bytes)
    return found


def test_no_thread_but_the_first_imports_modules() -> None:
    # In a child forked during such an import, host lookups fail forever: "unknown encoding: idna".
    with RedisServer(tcp=True) as store, store.client() as client:
        # Only the dispatcher looks up a host.
        fleet = Fleet(store, client, f"redis+socket://{store.socket}", "delaying")
        with fleet.worker(pool="prefork", app="tests.support.celery.watching_app").ready() as worker:
            send(fleet.delayed(), 0.1)
            fleet.wait_for(1)
            assert IMPORTED not in worker.output


class TestOnTime:
    def test_each_task_runs_once_and_not_early_and_nothing_remains(self, fleet: Fleet) -> None:
        delayed = fleet.delayed()
        with fleet.worker().ready() as worker:
            results = [send(delayed, number * 0.05) for number in range(1, 41)]
            ran = fleet.wait_for(40)
            assert Counter(row["id"] for row in ran) == Counter(result.id for result in results)
            assert all(row["ran"] >= row["due"] for row in ran)
            late = sorted(row["ran"] - row["due"] for row in ran)
            # Much less than the interval after which a dispatcher polls.
            assert late[20] < 2, f"median lateness {late[20]:.3f} s"
            assert results[0].get(timeout=5) == results[0].id
            assert worker.finish() == 0
        assert delayed.count() == 0
        assert delayed.queue.stats().in_flight == 0
        assert leader(fleet.client) is None

    def test_tasks_stored_without_a_worker_run_when_one_starts(self, fleet: Fleet) -> None:
        delayed = fleet.delayed()
        ids = [send(delayed, 0.01).id for _ in range(5)]
        with fleet.worker().ready():
            assert sorted(row["id"] for row in fleet.wait_for(5)) == sorted(ids)

    @pytest.mark.parametrize(
        "pool", ["prefork", pytest.param("gevent", marks=pytest.mark.matrix), *thorough("threads", "solo", "eventlet")]
    )
    def test_any_pool_dispatches_and_stops_within_a_second(self, fleet: Fleet, pool: str) -> None:
        delayed = fleet.delayed()
        with fleet.worker(pool=pool).ready() as worker:
            send(delayed, 0.1)
            fleet.wait_for(1)
            wait_until(lambda: leader(fleet.client), description="a leader")
            assert worker.finish() == 0
            assert "dispatch_slow_stop" not in worker.output
            assert "Traceback" not in worker.output
        assert leader(fleet.client) is None

    def test_a_retry_waits_in_the_store(self, fleet: Fleet) -> None:
        delayed = fleet.delayed()
        with fleet.worker().ready():
            result = delayed.app.send_task(STUBBORN, (2, 0.1))
            assert result.get(timeout=60) == 2

    def test_earlier_task_wakes_a_sleeping_dispatcher(self, fleet: Fleet) -> None:
        fleet.settings["redis_queue_dispatch_interval"] = 60.0
        delayed = fleet.delayed()
        with fleet.worker().ready():
            wait_until(lambda: leader(fleet.client), description="a leader")
            send(delayed, 3600)
            begin = time.monotonic()
            send(delayed, 0.2)
            fleet.wait_for(1, timeout=10)
            assert time.monotonic() - begin < 5


class TestWithoutDispatch:
    @pytest.mark.parametrize("how", ["option", "setting"])
    def test_worker_does_not_send_due_entries(self, fleet: Fleet, how: str) -> None:
        if how == "setting":
            fleet.settings["redis_queue_dispatch"] = False
        delayed = fleet.delayed()
        with fleet.worker(*(["--without-dispatch"] if how == "option" else [])).ready() as worker:
            send(delayed, 0.01)
            direct = delayed.app.send_task("tests.note")
            fleet.wait_for(1)
            assert [row["id"] for row in fleet.ran] == [direct.id]
            wait_until(lambda: delayed.queue.stats().due == 1, description="the entry to be due")
            assert worker.finish() == 0
        assert delayed.count() == 1


class TestFaults:
    def test_another_worker_takes_over_when_the_leader_is_killed(self, fleet: Fleet) -> None:
        # Its lease would end later than this test: its closed connection tells that it is gone.
        fleet.settings["redis_queue_dispatch_interval"] = 60
        delayed = fleet.delayed()
        with fleet.worker(name="one") as one, fleet.worker(name="two") as two:
            one.wait_for_output("ready.")
            two.wait_for_output("ready.")
            first = wait_until(lambda: leader(fleet.client), description="a leader")
            for worker in (one, two):
                if f":{worker.pid}:".encode() in first:
                    worker.kill()
            wait_until(lambda: leader(fleet.client) not in (None, first), description="another leader")
            results = [send(delayed, 0.1) for _ in range(5)]
            assert Counter(row["id"] for row in fleet.wait_for(5)) == Counter(result.id for result in results)

    @pytest.mark.parametrize("at_start", [False, True], ids=["restarts", "is away when the worker starts"])
    def test_store_that_is_waited_for(self, *, at_start: bool) -> None:
        with RedisServer(tcp=True, aof="always") as store, store.client() as client, RedisServer() as other:
            fleet = Fleet(store, client, f"redis+socket://{other.socket}", "delaying")
            fleet.settings["redis_queue_dispatch_interval"] = 0.2
            delayed = fleet.delayed()
            send(delayed, 0.1)
            if at_start:
                store.kill()
            with fleet.worker().ready() as worker:
                if not at_start:
                    fleet.wait_for(1)
                    store.kill()
                worker.wait_for_output("cannot dispatch")
                store.restart()
                send(delayed, 0.1)
                fleet.wait_for(2)
                assert worker.finish() == 0

    def test_restarting_broker_is_waited_for(self) -> None:
        with RedisServer() as store, store.client() as client, RedisServer(tcp=True) as other:
            fleet = Fleet(store, client, other.url, "delaying")
            fleet.settings["redis_queue_dispatch_interval"] = 0.2
            delayed = fleet.delayed()
            with fleet.worker().ready() as worker:
                send(delayed, 0.1)
                fleet.wait_for(1)
                other.kill()
                ids = [send(delayed, 0.05).id for _ in range(5)]
                worker.wait_for_output("cannot dispatch")
                other.restart()
                ran = fleet.wait_for(6, timeout=40)
                assert set(ids) <= {row["id"] for row in ran}
                wait_until(lambda: delayed.queue.stats().in_flight == 0, description="nothing in flight")
                assert delayed.queue.stats().dead == 0

    def test_invalid_settings_stop_the_worker_with_a_clear_message(self, fleet: Fleet) -> None:
        fleet.settings["redis_queue_min_dealy"] = 3
        with fleet.worker() as worker:
            assert worker.wait() != 0
            assert "unknown setting redis_queue_min_dealy: did you mean redis_queue_min_delay?" in worker.output
