"""Data for all pages of the dashboard."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from redis_queue import DelayQueue, RedisQueue
from redis_queue.admission.flows import Flows
from redis_queue.admission.owners import Owners, field_of, new_token
from redis_queue.admission.rules import Flow
from redis_queue.basics.histogram import Histogram
from redis_queue.celery import DurableTasks
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.schedules.runs import calendar_of
from redis_queue.delay.dispatch_log import DispatcherRow
from redis_queue.delay.model import Dispatched, Push
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure, RunningTask, Series, Tally, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.audit import Audit, AuditLine
from redis_queue.schedules.definition import Definition
from redis_queue.schedules.state import NONE, Event, State
from redis_queue.schedules.store import Change, ScheduleStore
from redis_queue.store.keys import FlowKeys, Keys
from tests.support.store.stage import replies
from tests.support.wait import must
from tests.support.web.browser import Browser

TASK = "00000000-0000-4000-8000-000000000001"


def fill_queue(client: redis.Redis, name: str = "orders", text: str = "") -> RedisQueue:
    """Fill a RedisQueue with items in every state; *text* is part of every field that callers can set."""
    queue = RedisQueue(name, client, max_deliveries=2)
    body, headers = {f"body{text}": f"value{text}"}, {f"header{text}": f"value{text}"}
    for id_ in ("unreadable", f"dead{text}", f"held{text}", f"first{text}", f"second{text}"):
        queue.put(body, headers=headers, dedupe_key=id_)
    client.hset(Keys("redis_queue", "queue", name).records, "unreadable", f"\x1b[2J{text}")
    dead = must(queue.get(block=False))
    queue.nack(dead, dead=True, reason=f"Timeout{text}")
    assert queue.get(block=False) is not None
    queue.put(body, headers=headers, delay=60, dedupe_key=f"later{text}")
    return queue


def fill_delayed(client: redis.Redis, name: str = "scheduled", text: str = "", count: int = 60) -> DelayQueue:
    """Fill a DelayQueue with items in every state, and record dispatches."""
    queue = DelayQueue(name, client)
    call = {
        "task": f"shop.remind{text}",
        "args": [f"argument{text}"],
        "kwargs": {f"name{text}": f"value{text}", "password": "hunter2"},
        "options": {"queue": f"slow{text}", "headers": {f"stamp{text}": f"value{text}"}},
    }
    headers = {f"header{text}": f"value{text}", "authorization": "Bearer abcdefghijkl"}
    for id_ in (f"dead{text}", f"held{text}", "unreadable"):
        queue.push(call, id=id_, headers=headers)
    client.hset(Keys("redis_queue", "delay", name, 0).records, "unreadable", f"\x1b[2J{text}")
    for entry in queue.claim(3):
        if entry.id.startswith("dead"):
            queue.nack(entry, dead=True, reason=f"no such queue{text}")
    queue.push_many(
        Push(call, delay=3600 + number, id=f"task-{number}{text}", headers=headers) for number in range(count)
    )
    queue.push({f"plain{text}": "data"}, id=f"data{text}", delay=30)
    queue.push(call, id=f"overdue{text}", headers=headers)
    queue.push("far", id="far", delay=timedelta(days=40))
    row = DispatcherRow(f"worker{text}", datetime.now(timezone.utc), True, f"1{text}", 9, 1, f"refused{text}")
    queue.dispatch_log.note(Dispatched(9, 1, Histogram.of([7, 30, 400])), dispatcher=row)
    return queue


def fill_audit(client: redis.Redis, text: str = "") -> None:
    action = AuditLine(datetime.now(timezone.utc), f"ann{text}", f"cancel{text}", f"celery{text}", 3, f"to 2h{text}")
    Audit(client, "redis_queue").record(action)


def fill_failures(client: redis.Redis, text: str = "") -> Failures:
    """Keep two failures: "failed", which can be retried, and "lost", which has no message."""
    headers = {"lang": "py", "task": f"shop.remind{text}", "id": f"failed{text}", "retries": 2}
    body = b'[[1], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
    message = Envelope(body, "application/json", "utf-8", headers, {}, "", "celery").pack("")
    failed = Failure(
        f"failed{text}",
        f"shop.remind{text}",
        f"celery{text}",
        f"worker{text}",
        datetime.now(timezone.utc),
        exception=f"ValueError{text}",
        message=f"broken{text}",
        release=f"release{text}",
        traceback=f'Traceback (most recent call last):\n  File "mail.py"\nValueError: broken{text}',
        args=f"('argument{text}',)",
        kwargs="{'password': 'hunter2'}",
        attempts=3,
        seconds=0.25,
        body=message,
    )
    failures = Failures(client, "redis_queue")
    lost = replace(failed, id=f"lost{text}", kind="unregistered", attempts=0, seconds=None, body=None)
    failures.keep([failed, lost], 1000, 7, missed=5)
    return failures


def fill_reports(client: redis.Redis, text: str = "") -> None:
    """Write a report of a worker that runs two tasks, and has just run ten: one failed, two were retried."""
    at = datetime.now(timezone.utc)
    times = Histogram.of([20] * 9 + [3000])
    queues = (f"celery{text}", "slow")
    versions = {"celery": f"5{text}"}
    worker = WorkerRow(f"worker{text}", at, at, f"host{text}", 7, f"prefork{text}", 4, 2, 1, queues, versions=versions)
    worker = replace(worker, release=f"release{text}")
    running = [
        RunningTask(id_, f"shop.remind{text}", f"celery{text}", worker.name, at, f"('argument{text}',)")
        for id_ in (f"runs{text}", "runs-too")
    ]
    tallies = {Series(f"shop.remind{text}", f"celery{text}"): Tally(10, 1, 2, 0, times, times, times)}
    Reports(client, "redis_queue").write(worker, running, tallies)


def fill_flows(client: redis.Redis, text: str = "") -> Flows:
    """Declare a flow of each kind, with messages that run and wait: plain, paused and changed, with keys, fair.

    The queue "quiet" has no flow and is paused. No test sends to these queues.
    """
    flows, keys = Flows(client, "redis_queue"), FlowKeys("redis_queue")
    plain, keyed, fair = f"queue:slow{text}", f"shop.sync{text}", f"queue:bulk{text}"
    flows.declare(
        {
            plain: Flow(limit=10, rate="100/m", burst=5),
            keyed: Flow(limit=1, key="shop:{shop}"),
            fair: Flow(limit=40, fair="{tenant}", limit_each=4, rate_each="2/s"),
        }
    )
    flows.set(plain, limit=3)
    flows.pause(plain)
    flows.pause("queue:quiet")
    for name, running, waiting in ((keyed, 1, 3), (fair, 2, 7)):
        client.hset(keys.running.decode(), mapping={name: running, f"{name}\0ann{text}": running})
        client.hset(keys.backlog.decode(), name, waiting)
        client.zadd(keys.keys(name), {f"ann{text}": waiting - 1, "ben": 1})
    return flows


def fill_unique(client: redis.Redis, text: str = "") -> Owners:
    """Let tasks of the other data own keys: two of one task, and the key of a task without keys."""
    owners = Owners(client, "redis_queue")
    for hours, (task, key, id_) in enumerate(
        (
            (f"shop.sync{text}", f"order:7{text}", f"task-0{text}"),
            (f"shop.sync{text}", f"order:8{text}", f"task-1{text}"),
            ("shop.rebuild", "", f"runs{text}"),
        ),
        start=1,
    ):
        field, token = field_of(task, key), new_token()
        assert owners.acquire(field, token, task_id=id_, ttl_ms=3_600_000 * hours).owns
        assert owners.confirm(field, token)
    return owners


def fill_schedules(client: redis.Redis, text: str = "", app: str = "app") -> ScheduleStore:
    """Store a schedule that is due, with runs and events, a paused one, one that is over, and an unreadable one."""
    store = ScheduleStore(DelayQueue("scheduled", client))
    now = store.now()
    usual = Definition(
        f"nightly{text}", f"shop.report{text}", [{"cron": "30 2 * * *"}], timezone="Europe/Berlin", app=app
    )
    often = replace(usual, name=f"often{text}", rules=[{"every": 60_000}], timezone="UTC", args=[f"argument{text}"])
    often = replace(often, kwargs={"token": "hunter2"}, options={"queue": f"slow{text}"})
    state = State(
        "0123abcd",
        now + 90_000,
        now - 3_600_000,
        9,
        1,
        2,
        3,
        4,
        failed=2,
        active=NONE if " " in text else f"runs{text}",
        active_at=now,
    )
    events = [
        Event("sent", now - 59_000, f"first{text}", now - 60_000),
        Event("ended", now - 50_000, f"first{text}", text="failed"),
        Event("skipped", now - 40_000, due=now - 50_000, until=now - 45_000, count=3, text="late"),
        Event("error", now - 30_000, text=f"no broker{text}"),
        Event("paused", now - 20_000, until=now + 60_000, text=f"stocktaking{text}"),
        Event("resumed", now - 10_000),
        Event("sent", now - 2000, f"runs{text}", now - 5000),
    ]
    # Not within two minutes: the others are due before it, at any time of day.
    due = calendar_of(usual).next(now + 120_000) or 0
    over = replace(usual, name=f"over{text}", until=now - 1)
    paused = replace(usual, name=f"paused{text}", pause_after_failures=3)
    changes = [
        Change(often.name, b"", state, often.text(), state.due, events),
        Change(usual.name, b"", State("0123abce", due, now), usual.text(), due),
        Change(paused.name, b"", replace(state, is_paused=True), paused.text(), now + 95_000),
        Change(over.name, b"", State("0123abcf", 0, now, 5), over.text()),
        Change(f"broken{text}", b"", State("0123abc0", now, now), f"not JSON{text}"),
    ]
    assert store.change(changes) == [True] * len(changes)
    return store


def fill(client: redis.Redis, app: Celery | None = None) -> None:
    """Fill all queues; with *app*, also with two of its tasks."""
    client.flushall()
    fill_queue(client)
    fill_delayed(client)
    fill_failures(client)
    fill_audit(client)
    fill_reports(client)
    fill_flows(client)
    fill_unique(client)
    RedisQueue("quiet", client).put("x")
    RedisQueue("quiet", client).pause()
    RedisQueue("broken", client).put("x")
    client.set(Keys("redis_queue", "queue", "broken").dead, "not a sorted set")
    client.lpush("redis_queue:audit", "not JSON", json.dumps(["no", "mapping"]))
    if app is not None:
        due = datetime.now(timezone.utc) + timedelta(hours=2)
        app.send_task("shop.remind", ["secret"], {"token": "hunter2"}, eta=due, task_id=TASK)
        app.send_task("shop.cancel", [2], eta=due, task_id="task-of-app", queue="slow")


def everything(client: redis.Redis) -> dict[bytes, Any]:
    """Return each key with its value and whether it has a TTL, including temporary keys."""
    # The order of fields in a hash is undefined: Redis may be rehashing it.
    kinds = replies(client, lambda pipe, key: pipe.type(key))
    found = replies(client, lambda pipe, key: pipe.hgetall(key) if kinds[key] == b"hash" else pipe.dump(key))
    times = replies(client, lambda pipe, key: pipe.pttl(key))
    return {key: (value, times[key] >= 0) for key, value in found.items()}


def delayed_of(app: Celery, client: redis.Redis) -> DurableTasks:
    """Return the DurableTasks of *app*, with its entries in the Redis of *client*."""
    delayed = DurableTasks(app, leases=False)
    delayed.queue = DelayQueue("scheduled", client)
    return delayed


KEY = "a key for tests only"

Open = Callable[..., Browser]
"""Return a browser on a dashboard with these settings."""


@dataclass
class Served:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")


Serve = Callable[..., Served]
"""Start ``redis-queue web`` with these arguments."""


def read_all(connection: Any, timeout: float = 5.0) -> bytes:
    """Return all bytes until the other side closes, or sends nothing for *timeout* seconds."""
    found = b""
    while select.select([connection], [], [], timeout)[0] and (part := connection.recv(65536)):
        found += part
    return found


def last_action(client: redis.Redis) -> tuple[str, str, str, int, str]:
    """Return the last action in the audit log: user, verb, queue, count and detail."""
    action = Audit(client, "redis_queue").last()[0]
    return action.user, action.verb, action.queue, action.count, action.detail
