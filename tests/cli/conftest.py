"""A Redis with entries in every state at a fixed time, and fixtures that run commands on it."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import Result

from redis_queue import DelayQueue, RedisQueue
from redis_queue.admission.flows import Flows
from redis_queue.admission.owners import Owners, field_of
from redis_queue.admission.rules import Flow
from redis_queue.basics.histogram import Histogram
from redis_queue.celery import DurableTasks
from redis_queue.celery.message.envelope import pack
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.cli import celery as celery_cli
from redis_queue.cli import group
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure, RunningTask, Series, Tally, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.inspector import Inspector
from redis_queue.schedules.state import NEVER, Event
from redis_queue.schedules.store import Change, ScheduleStore, Stored
from redis_queue.store.keys import FlowKeys, Keys, ScheduleKeys
from tests.support.cli.commands import DUE, NOW, Run, runner
from tests.support.clock import Clock
from tests.support.wait import must

DAY_MS = 86_400_000


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


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run commands in an empty folder: some write files."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of every command that runs in this process."""
    clock = Clock(NOW)
    monkeypatch.setattr("redis_queue.operate.access.Inspector", functools.partial(Inspector, clock=clock))
    return clock


@pytest.fixture
def orders(client: redis.Redis, clock: Clock) -> RedisQueue:
    """A RedisQueue with messages in every state."""
    queue = RedisQueue("orders", client, clock=clock)
    for id_ in ("unreadable", "dead", "held", "first", "second"):
        queue.put({"order": id_}, headers={"trace": "abc"}, dedupe_key=id_)
    client.hset(Keys("redis_queue", "queue", "orders").records, "unreadable", "\x1b[2J")
    dead = must(queue.get(block=False))
    queue.nack(dead, dead=True, reason="Timeout: no answer")
    queue.get(block=False)
    queue.put("later", delay=60, dedupe_key="later")
    return queue


@pytest.fixture
def failed(client: redis.Redis, clock: Clock) -> Failures:
    """Failures of two tasks; the one with the id "failed" can be retried."""
    element = {
        "body": '[["secret"], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]',
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": "shop.remind", "id": "failed", "retries": 2},
        "properties": {
            "correlation_id": "failed",
            "delivery_info": {"exchange": "", "routing_key": "celery"},
            "delivery_tag": "",
        },
    }
    found = Failure(
        "failed",
        "shop.remind",
        "celery",
        "one@host",
        DUE,
        exception="smtplib.SMTPException",
        message="no route",
        traceback='Traceback (most recent call last):\n  File "mail.py"\nsmtplib.SMTPException: no route\n',
        args="('secret',)",
        kwargs="{}",
        attempts=3,
        seconds=0.25,
        body=pack(json.dumps(element, separators=(",", ":"))),
    )
    gone = replace(found, id="gone", task="shop.old", kind="unregistered", exception="NotRegistered", body=None)
    failures = Failures(client, "redis_queue", clock)
    failures.keep([found, replace(gone, message="", traceback="", attempts=0, seconds=None)], 1000, 7)
    return failures


@pytest.fixture
def reports(client: redis.Redis, clock: Clock) -> Reports:
    found = Reports(client, "redis_queue", clock)
    since = datetime.fromtimestamp(clock.now / 1000 - 90, timezone.utc)
    worker = WorkerRow(
        "one@host",
        since,
        since,
        pool="prefork",
        concurrency=4,
        busy=1,
        prefetched=3,
        executed_per_minute=120,
        failed_per_minute=2,
        memory=70_000_000,
        loop_age=0.1,
        keeper=True,
    )
    task = RunningTask("running", "shop.remind", "celery", "one@host", since, "('secret',)", "{}", lease="held")
    tally = Tally(100, 3, 1, 2, Histogram.of([30] * 100), Histogram.of([7] * 100))
    found.write(worker, [task], {Series("shop.remind", "celery"): tally})
    return found


@pytest.fixture
def lost(client: redis.Redis, clock: Clock) -> str:
    """The name of a worker that reported two minutes ago that it runs two tasks, one for long."""
    name, seen = "celery@gone", datetime.fromtimestamp(clock.now / 1000 - 120, timezone.utc)
    task = RunningTask("lost", "shop.hang", "celery", name, seen - timedelta(seconds=240))
    reports = Reports(client, "redis_queue", lambda: round(seen.timestamp() * 1000))
    reports.write(WorkerRow(name, seen, seen, pool="prefork", busy=2, release="abc"), [task])
    return name


@pytest.fixture
def flows(client: redis.Redis) -> Flows:
    """Flows of each kind with messages that run and wait: one has another limit than in the code, one is paused."""
    found, keys = Flows(client, "redis_queue"), FlowKeys("redis_queue")
    found.declare(
        {
            "queue:mail": Flow(limit=10, rate="100/m"),
            "queue:reports": Flow(limit=20, fair="{customer}", limit_each=2, rate_each="5/s", burst=3),
            "shop.sync": Flow(limit=1, key="{shop}"),
        }
    )
    found.set("queue:mail", limit=5)
    found.pause("queue:reports")
    found.set("queue:reports", key="ann", limit=1, rate=None)
    found.pause("queue:reports", key="zoe")
    client.hset(keys.running, mapping={"queue:reports": 3, "queue:reports\0ann": 2, "queue:reports\0bob": 1})
    client.hset(keys.backlog, mapping={"queue:reports": 1205, "queue:mail": 1})
    client.zadd(keys.keys("queue:reports"), {"ann": 5, "eve": 1200})
    return found


@pytest.fixture
def unique(client: redis.Redis) -> Owners:
    """Owners of keys in each state, of a task with keys and of one without."""
    keys = FlowKeys("redis_queue")
    records: dict[Any, Any] = {
        field_of("shop.sync", "order:7"): "1a - w 86400000 7c6c8f2e-0000-4000-8000-000000000007",
        field_of("shop.sync", "order:8"): "2a - r 86400000 task-8",
        field_of("shop.remind", "order:9"): "3a - d 86400000 task-9",
        field_of("shop.remind", "order:10"): "4a d3a s 10000 task-10",
        field_of("shop.rebuild", ""): "5a - w 3600000 task-2",
    }
    client.hset(keys.owners, mapping=records)
    client.zadd(keys.owner_ends, {field: NOW + 3_600_000 * number for number, field in enumerate(records, 1)})
    return Owners(client, "redis_queue")


@pytest.fixture
def tasks(app: Celery, client: redis.Redis, clock: Clock) -> DelayQueue:
    """The DelayQueue of the app, with two tasks and an entry that is not a task."""
    delayed = DurableTasks(app, leases=False)
    delayed.queue = DelayQueue("scheduled", client, clock=clock)
    app.send_task("shop.remind", ["secret"], eta=DUE, task_id="00000000-0000-4000-8000-000000000001")
    app.send_task("shop.cancel", [2], eta=DUE.replace(hour=3), task_id="task-2", queue="slow")
    delayed.queue.push({"plain": "data"}, id="data", delay=30)
    return delayed.queue


@pytest.fixture
def schedules(tasks: DelayQueue, app: Celery, client: redis.Redis, clock: Clock) -> Schedules:
    """Schedules in each state: one is late, skipped runs and has a run that ended; one is paused, one unreadable."""
    found: Schedules = DurableTasks.of(app).schedules  # type: ignore[attr-defined]
    clock.now = NOW - 2 * DAY_MS
    nightly = {"timezone": "Europe/Berlin", "kwargs": {"token": "secret"}, "overlap": "skip", "queue": "reports"}
    found.put("nightly", "30 2 * * *", "shop.report", **nightly, max_runs=9)
    found.put("poll", ["every 10 s", "0 12 * * mon"], "shop.poll", missed="skip", jitter=3)
    found.put("once", "0 3 * * *", "shop.once", max_runs=1)
    found.put("broken", "every 1h", "shop.broken")
    clock.now = NOW
    ran = Event("sent", NOW - 80_000_000 + 2500, "run-1", NOW - 80_000_000)
    ended = Event("ended", ran.at + 60_000, "run-1", text="succeeded")
    skipped = Event("skipped", NOW - 1_800_000, due=NOW - 5_400_000, until=NOW - 1_800_000, count=2, text="overlap")
    note(found.store, "nightly", [ran, ended, skipped], NOW + 9_000_000, runs=1, overlap=2)
    note(found.store, "poll", [Event("paused", NOW - 60_000, text="too much \x1b[2J")], NOW - 60_000, is_paused=True)
    note(found.store, "once", [Event("sent", NOW - DAY_MS, "run-2", NOW - DAY_MS, text="by hand")], 0, runs=1)
    client.hset(ScheduleKeys(Keys("redis_queue", "delay", "scheduled", 0)).schedules, "broken", "[]")
    return found


def note(store: ScheduleStore, name: str, events: Sequence[Event], due: int, **state: Any) -> None:
    """Add events to a schedule, and change its next due time and its state."""

    def make(stored: Stored | None) -> Change:
        assert stored is not None
        assert stored.state is not None
        after = replace(stored.state, due=due, **state)
        return Change(name, stored.state_text, after, look=NEVER if after.is_paused or not due else due, events=events)

    assert store.update(name, make)


@pytest.fixture
def run(redis_url: str) -> Run:
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
