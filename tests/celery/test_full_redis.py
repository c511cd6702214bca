"""Celery on a full Redis: new tasks are refused, stored and sent ones run, and no retry is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from redis_queue.celery import Dispatched, Dispatcher, DurableTasks
from tests.support.celery.brokers import Broker
from tests.support.celery.full_names import ADD, AGAIN, RAN
from tests.support.celery.processes import CeleryProcess
from tests.support.marks import thorough
from tests.support.servers import RedisServer
from tests.support.store.server_states import Ballast
from tests.support.wait import wait_until

ADVICE = "let consumers and workers make room, or raise its maxmemory"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


@pytest.fixture
def app(server: RedisServer) -> Iterator[Celery]:
    broker = f"redis+socket://{server.socket}"
    with closing(Celery("full", broker=broker, set_as_current=False)) as app:
        app.conf.update(redis_queue_url=server.url, task_default_queue="full")
        yield app


@pytest.fixture
def delayed(app: Celery) -> DurableTasks:
    return DurableTasks(app, leases=False)


def nothing() -> None:
    """Do nothing."""


class TestProducer:
    def calls(self, delayed: DurableTasks) -> list[Any]:
        """Return the ways to send a task."""
        task: Any = delayed.app.task(nothing, name=ADD, shared=False)
        return [
            task.delay,
            lambda: task.apply_async(retry=False),
            lambda: delayed.app.send_task(ADD),
            lambda: task.apply_async(countdown=60),
            lambda: delayed.send_many([task.s()], countdown=60),
        ]

    @pytest.mark.parametrize("declared", [True, False])
    def test_is_told_what_to_do(self, delayed: DurableTasks, client: redis.Redis, *, declared: bool) -> None:
        calls = self.calls(delayed)
        if declared:
            for call in calls:
                call()
        client.config_set("maxmemory", "1")
        before = client.dbsize(), client.llen("full"), delayed.count()
        for call in calls:
            with pytest.raises(OperationalError, match=ADVICE):
                call()
        assert (client.dbsize(), client.llen("full"), delayed.count()) == before
        client.config_set("maxmemory", "0")
        for call in calls:
            call()


def dispatched(delayed: DurableTasks, client: redis.Redis) -> list[str]:
    """Dispatch twenty tasks while Redis is full; return their ids."""
    ids = [delayed.app.send_task(ADD, countdown=60).id for _ in range(20)]
    assert all(map(delayed.run_now, ids))
    client.config_set("maxmemory", "1")
    with closing(Dispatcher(delayed.app, delayed.queue)) as work:
        assert work.run() == Dispatched(sent=20)
    return ids


def test_due_tasks_are_moved_into_the_queue(delayed: DurableTasks, client: redis.Redis) -> None:
    dispatched(delayed, client)
    assert client.llen("full") == 20
    assert delayed.count() == 0


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_due_tasks_are_sent_to_another_broker(broker: Broker, server: RedisServer, client: redis.Redis) -> None:
    app = broker.app(redis_queue_url=server.url)
    ids = dispatched(DurableTasks(app, leases=False), client)
    assert sorted(broker.take_ids(app.conf.task_default_queue)) == sorted(ids)


@pytest.mark.parametrize(
    ("fetch", "pool"), [("0", "solo"), ("1", "prefork"), *thorough(("0", "prefork"), ("1", "solo"))]
)
def test_running_worker_drains_everything(
    delayed: DurableTasks, client: redis.Redis, notes: RedisServer, *, pool: str, fetch: str
) -> None:
    app = delayed.app
    environment = {
        "BROKER_URL": app.conf.broker_url,
        "STORE_URL": app.conf.redis_queue_url,
        "NOTES_URL": notes.url,
        "ATOMIC_FETCH": fetch,
    }
    arguments = ("--pool", pool, "--concurrency", "2", "--loglevel", "INFO", "--without-gossip", "--without-mingle")
    worker = CeleryProcess(
        *("-A", "tests.support.celery.full_app", "worker"), *arguments, environment=environment, beat=False
    )
    with worker, notes.client() as runs:
        worker.wait_for_output("ready.")
        signatures = (app.signature(ADD, ("x" * 200,)) for _ in range(700))
        ids = [result.id for result in delayed.send_many(signatures, countdown=2)]
        ids += [app.send_task(AGAIN, (countdown,)).id for countdown in (0, 0.5) for _ in range(2)]
        ids += [app.send_task(ADD, ("x" * 200,)).id for _ in range(100)]
        ballast = Ballast(client)
        with pytest.raises(OperationalError, match=ADVICE):
            app.send_task(ADD)
        wait_until(lambda: runs.llen(RAN) >= len(ids), timeout=40, description="all tasks to run")
        wait_until(lambda: not client.exists("full", "unacked", "unacked_index"), description="an empty broker")
        assert sorted(row.decode() for row in runs.lrange(RAN, 0, -1)) == sorted(ids)
        assert delayed.count() == 0
        assert ballast.is_full()

        ballast.free()
        app.send_task(ADD)
        app.send_task(ADD, countdown=0.1)
        wait_until(lambda: runs.llen(RAN) == len(ids) + 2, timeout=20, description="new tasks to run")
        assert worker.finish() == 0
