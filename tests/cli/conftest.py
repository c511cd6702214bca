"""A Redis with entries in every state at a fixed time, and fixtures that run commands on it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import Result

from redis_queue import DelayQueue, RedisQueue
from redis_queue.celery import DelayedTasks
from redis_queue.cli import celery as celery_cli
from redis_queue.cli import group
from redis_queue.operate.inspector import Inspector
from redis_queue.store.keys import Keys
from tests.support.cli.runner import DUE, NOW, Run, runner
from tests.support.clock import Clock
from tests.support.servers import RedisServer


@pytest.fixture(autouse=True)
def local_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set the time zone of this process by the value of TZ; it is UTC at first."""

    def choose(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    choose("UTC")
    yield choose
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of every command that runs in this process."""
    clock = Clock(NOW)
    for module in ("redis_queue.cli.access", "redis_queue.operate.access"):
        monkeypatch.setattr(f"{module}.Inspector", functools.partial(Inspector, clock=clock))
    return clock


@pytest.fixture
def orders(client: redis.Redis, clock: Clock) -> RedisQueue:
    """A RedisQueue with messages in every state."""
    queue = RedisQueue("orders", client, clock=clock)
    for id_ in ("unreadable", "dead", "held", "first", "second"):
        queue.put({"order": id_}, headers={"trace": "abc"}, dedupe_key=id_)
    client.hset(Keys("redis_queue", "queue", "orders").records, "unreadable", "\x1b[2J")
    dead = queue.get(block=False)
    assert dead is not None
    queue.nack(dead, dead=True, reason="Timeout: no answer")
    queue.get(block=False)
    queue.put("later", delay=60, dedupe_key="later")
    return queue


@pytest.fixture
def app(redis_server: RedisServer, client: redis.Redis, clock: Clock) -> Iterator[Celery]:
    """An app with broker, result backend and store in the shared Redis."""
    url = f"redis+socket://{redis_server.socket}"
    app = Celery("tests", broker=url, backend=url, set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def tasks(app: Celery, client: redis.Redis, clock: Clock) -> DelayQueue:
    """The DelayQueue of the app, with two tasks and an entry that is not a task."""
    delayed = DelayedTasks(app)
    delayed.queue = DelayQueue("celery", client, clock=clock)
    app.send_task("shop.remind", ["secret"], eta=DUE, task_id="00000000-0000-4000-8000-000000000001")
    app.send_task("shop.cancel", [2], eta=DUE.replace(hour=3), task_id="task-2", queue="slow")
    delayed.queue.push({"plain": "data"}, id="data", delay=30)
    return delayed.queue


@pytest.fixture
def run(redis_url: str) -> Run:
    """Run `redis-queue …` in this process."""

    def run(*arguments: str, **options: Any) -> Result:
        environment = {"REDIS_QUEUE_URL": redis_url, "COLUMNS": "80"}
        return runner().invoke(group, arguments, env=environment, catch_exceptions=False, **options)

    return run


@pytest.fixture
def run_in_app(app: Celery) -> Run:
    """Run `celery -A app redis-queue …` in this process."""

    def run(*arguments: str, **options: Any) -> Result:
        place = SimpleNamespace(app=app)
        return runner().invoke(
            celery_cli.group, arguments, obj=place, env={"COLUMNS": "80"}, catch_exceptions=False, **options
        )

    return run
