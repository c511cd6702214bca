"""The reference application in real processes: `celery -A tasks worker --beat`, on Redis and on RabbitMQ."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue import DelayQueue, RedisQueue
from redis_queue.celery import push_task
from tests.support.celery.brokers import Broker, ManualClock
from tests.support.celery.processes import CeleryProcess
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

WORKER = ("worker", "--beat", "--concurrency", "2", "--loglevel", "INFO", "--without-mingle", "--without-gossip")
PREFIX = "shop"
PUTBACK = "tasks.putback.putback"
DELAY_DISPATCH = "tasks.delay_dispatch.delay_dispatch"
REMIND = "tasks.orders.remind"
CANCEL = "tasks.orders.cancel_unpaid"


@dataclass
class Installation:
    """An empty Redis, a broker, and the environment variables of the reference application."""

    client: redis.Redis
    broker_url: str
    module: str = "tasks"
    prefix: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def celery(self, *arguments: str, **environment: str) -> CeleryProcess:
        """Return a `celery` process of the application with these arguments."""
        environment = {"REDIS_QUEUE_PREFIX": PREFIX, **self.environment, **environment}
        return CeleryProcess("-A", self.module, *arguments, environment=environment)

    def queue(self, name: str) -> str:
        return f"{self.prefix}-{name}" if self.prefix else name

    @property
    def delayed(self) -> DelayQueue:
        return DelayQueue("scheduled", self.client, prefix=PREFIX)

    @property
    def executed(self) -> list[dict[str, Any]]:
        return [json.loads(row) for row in self.client.lrange(f"{PREFIX}:orders:executed", 0, -1)]

    def wait_for(self, count: int, *, timeout: float = 40.0) -> list[dict[str, Any]]:
        """Wait for at least *count* executed tasks and return them."""
        wait_until(lambda: len(self.executed) >= count, timeout=timeout, description=f"{count} executed tasks")
        return self.executed


@pytest.fixture
def own_redis() -> Iterator[Installation]:
    """Broker, store and results in one Redis, on a unix socket."""
    with RedisServer() as server, server.client() as client:
        broker_url = f"redis+socket://{server.socket}"
        yield Installation(client, broker_url, environment={"REDIS_URL": server.url})


@pytest.fixture
def own_rabbitmq(rabbitmq_url: str) -> Iterator[Installation]:
    """RabbitMQ as the broker, with queue names of its own."""
    with RedisServer(tcp=True) as server, server.client() as client, Broker(rabbitmq_url) as broker:
        prefix = broker.name("reference")
        broker.forget_later(f"{prefix}-celery", f"{prefix}-redis_queue", f"{prefix}-control.pidbox", f"{prefix}-events")
        environment = {"REDIS_URL": server.url, "CELERY_BROKER_URL": rabbitmq_url, "PRIVATE_PREFIX": prefix}
        yield Installation(client, rabbitmq_url, "tests.support.celery.private_tasks", prefix, environment)


@pytest.fixture(params=["own_redis", "own_rabbitmq"])
def installation(request: pytest.FixtureRequest) -> Installation:
    found: Installation = request.getfixturevalue(request.param)
    return found


def order(number: int) -> dict[str, Any]:
    """Return the keyword arguments for the task of an order that is due now."""
    return {"order": f"order-{number}", "due": time.time()}


def test_due_entries_run_leases_are_put_back_and_sigterm_is_a_warm_shutdown(
    installation: Installation, clock: ManualClock
) -> None:
    clock.advance(-3600)
    held = RedisQueue("lines", installation.client, clock=clock, prefix=PREFIX)
    held.put("x")
    assert held.get()
    with installation.celery(*WORKER) as celery:
        celery.wait_for_output("ready.")
        due = {}
        for number in range(20):
            id_, task, delay = f"order-{number}", (REMIND, CANCEL)[number % 2], number / 10
            due[id_] = time.time() + delay
            push_task(installation.delayed, task, (), order(number), id=id_, delay=delay)

        executed = installation.wait_for(20)
        with Celery("client", broker=installation.broker_url, set_as_current=False) as client:
            client.send_task(PUTBACK, queue=installation.queue("redis_queue"))
        wait_until(lambda: held.stats().ready == 1, description="the message to be put back")
        celery.wait_for_output(f"Task {PUTBACK}[")
        assert celery.finish_between_ticks() == 0
        output = celery.output

    assert sorted(row["id"] for row in executed) == sorted(due)
    assert {row["task"] for row in executed} == {"remind", "cancel_unpaid"}
    assert all(row["ran"] >= due[row["id"]] for row in executed)
    assert "Warm shutdown" in output
    assert "Traceback" not in output
    names = {line.strip(" .") for line in output.splitlines() if line.startswith("  . ")}
    assert names == {PUTBACK, DELAY_DISPATCH, REMIND, CANCEL}


def test_beat_sends_expiring_ticks_to_their_own_queue(own_redis: Installation) -> None:
    with own_redis.celery("beat", "--loglevel", "INFO", "--pidfile", "") as celery:
        wait_until(lambda: own_redis.client.llen("redis_queue") >= 2, description="two ticks")
        celery.finish()

    ticks = [json.loads(raw) for raw in own_redis.client.lrange("redis_queue", 0, -1)]
    assert {tick["headers"]["task"] for tick in ticks} == {DELAY_DISPATCH}
    for tick in ticks:
        assert tick["headers"]["expires"]
        assert 1_000 <= int(tick["properties"]["expiration"]) <= 10_000
    assert own_redis.client.llen("celery") == 0


def test_backlog_of_slow_tasks_does_not_delay_the_ticks(own_redis: Installation) -> None:
    with Celery("client", broker=own_redis.broker_url, set_as_current=False) as client:
        for _ in range(60):
            client.send_task("tests.work", [1.0])
    with own_redis.celery(*WORKER, "--include", "tests.support.celery.slow_tasks") as celery:
        celery.wait_for_output("tests.work[")
        for number in range(2):
            id_ = push_task(own_redis.delayed, REMIND, (), order(number), queue="redis_queue")
            rows = own_redis.wait_for(number + 1)
            assert rows[-1]["id"] == id_
        assert own_redis.client.llen("celery") > 0


def test_two_workers_with_their_own_beats_run_each_entry_once(own_redis: Installation) -> None:
    ids = own_redis.delayed.push_many(
        [{"task": REMIND, "args": [], "kwargs": order(number), "options": {}} for number in range(200)]
    )
    with own_redis.celery(*WORKER, "-n", "one@%h") as one, own_redis.celery(*WORKER, "-n", "two@%h") as two:
        own_redis.wait_for(200)
        # Both have checked for due entries at least once more.
        one.wait_for_output("'sent': 0")
        two.wait_for_output("'sent': 0")

    assert Counter(row["id"] for row in own_redis.executed) == Counter(ids)
