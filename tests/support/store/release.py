"""The data that release 0.1.0 stored, byte for byte: every later release must read them.

`python -m tests.support.store.release` writes the file with the code of this checkout. The file of a published
release must not change: a release that stores something else gets a file of its own.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import redis

from redis_queue import DelayQueue, Flow, Lock, RedisQueue
from redis_queue.admission.flows import Flows
from redis_queue.basics.histogram import Histogram
from redis_queue.celery import push_task
from redis_queue.delay.model import Dispatched
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure, Run, RunningTask, Series, Tally, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.audit import Audit, AuditLine
from redis_queue.store.keys import Keys
from tests.support.celery.fetching import Taker, connected
from tests.support.clock import Clock, when
from tests.support.servers import RedisServer
from tests.support.store.stage import READERS, SOMEBODY, replies

FILE: Final = Path(__file__).with_name("release_0_1_0.json")

RAN: Final = "release:ran"
"""LIST of the arguments of each run."""

FAR: Final = datetime(2100, 1, 1, tzinfo=timezone.utc)

CALLS: Final[dict[str, dict[str, Any]]] = {
    "protocol 2": {},
    "protocol 1": {},
    "msgpack": {"serializer": "msgpack"},
    "compressed": {"compression": "gzip"},
    "rich": {"priority": 5, "expires": FAR, "headers": {"trace": "Zoë"}, "queue": "other", "time_limit": 60},
    "non-ASCII": {"kwargs": {"name": "Zoë \x00 \U0001f600"}},
}
"""Delayed calls of the task "plain", by their argument and id, with options of `apply_async`."""

SHORT: Final = 100
"""Keys that Redis removes after fewer seconds are traces of running processes."""


def load(client: redis.Redis) -> None:
    """Write the data into an empty Redis."""
    for name, (kind, value) in json.loads(FILE.read_text()).items():
        key = raw(name)
        if kind == "hash":
            client.hset(key, mapping={raw(field): raw(text) for field, text in value.items()})
        elif kind == "zset":
            client.zadd(key, {raw(member): score for member, score in value.items()})
        elif kind == "string":
            client.set(key, raw(value))
        else:
            (client.rpush if kind == "list" else client.sadd)(key, *map(raw, value))


def raw(text: str) -> bytes:
    """Return the bytes of *text*: JSON cannot hold bytes."""
    return text.encode("latin-1")


def dump(client: redis.Redis) -> dict[str, Any]:
    """Return all data of a Redis as `load` reads them."""
    kinds: Any = replies(client, lambda pipe, key: pipe.type(key))
    times: Any = replies(client, lambda pipe, key: pipe.ttl(key))
    found: Any = replies(client, lambda pipe, key: READERS[kinds[key]](pipe, key))
    return {
        key.decode("latin-1"): [kinds[key].decode(), plain(value)]
        for key, value in sorted(found.items())
        if not 0 <= times[key] < SHORT and b":slot:" not in key
    }


def plain(value: Any) -> Any:
    """Return *value* of a key as JSON can hold it."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {plain(name): plain(text) for name, text in sorted(value.items())}
    if isinstance(value, set):
        return sorted(map(plain, value))
    if value and isinstance(value[0], tuple):
        return {plain(member): score for member, score in value}
    return [plain(each) for each in value]


def fill_queues(client: redis.Redis) -> None:
    """Put a message and an entry into each state."""
    clock = Clock()
    records = Keys("redis_queue", "queue", "orders").records
    queue = RedisQueue("orders", client, clock=clock, max_deliveries=3, put_back_on_get=0)
    queue.put("aside", dedupe_key="aside")
    client.hset(records, "aside", "garbage")
    assert not queue.get_many(1)
    queue.put("dead", dedupe_key="dead")
    queue.put("nacked", dedupe_key="nacked")
    queue.put({"n": 1, "name": "Zoë"}, dedupe_key="held", headers={"trace": "abc"})
    dead, nacked, _ = queue.get_many(3)
    queue.nack(dead, dead=True, reason="on purpose")
    queue.nack(nacked, reason="busy")
    queue.put(b"\x00\xff raw", dedupe_key="bytes")
    queue.put("delayed", dedupe_key="delayed", delay=60)
    queue.put("broken", dedupe_key="broken")
    client.hset(records, "broken", "garbage")
    timed = DelayQueue("orders", client, clock=clock, max_deliveries=3)
    timed.push("dead", id="dead")
    timed.nack(timed.claim()[0], dead=True, reason="on purpose")
    timed.push("held", id="held", headers={"trace": "abc"})
    timed.claim()
    timed.push(b"to a list", id="due", destination="target")
    timed.push({"n": 2}, id="waiting", delay=60)
    timed.dispatch_log.note(Dispatched(1, 0, Histogram.of([7])), dispatcher=SOMEBODY)


def fill_monitor(client: redis.Redis) -> None:
    """Write a report of a worker, a failure, a flow that was changed, a lock, an action."""
    clock = Clock()
    tally = Tally(executed=3, failed=1)
    run = Run("run", "plain", "shop", "one@test", "succeeded", when(0), started_at=when(-2), args="(1,)", release="r1")
    running = RunningTask("running", "plain", "shop", "one@test", when(-5), args="(2,)", lease="held")
    worker = WorkerRow("one@test", when(0), when(-60), pool="threads", concurrency=2, queues=["shop"], release="r1")
    for minute in range(2):
        Reports(client, "redis_queue", clock).write(worker, [running], {Series("plain", "shop"): tally}, [run])
        if not minute:
            clock.forward(60)
    failure = Failure("failed", "plain", "shop", "one@test", when(0), exception="ValueError", message="Zoë")
    Failures(client, "redis_queue", clock).keep([failure], 100, 14)
    flows = Flows(client, "redis_queue")
    flows.declare({"api": Flow(limit=3, rate="5/s", limit_each=1, fair="{shop}", weights={"big": 3})})
    flows.set("api", limit=2)
    flows.set("api", limit=1, key="7")
    flows.pause("api")
    Lock("job", client, clock=clock).acquire()
    Audit(client, "redis_queue").record(AuditLine(when(0), "ann", "cancel", "orders", 2, "by hand"))


def fill_celery(server: RedisServer) -> Iterator[None]:
    """Store delayed tasks and a schedule, and leave messages as a worker that was killed leaves them."""
    os.environ["BROKER_URL"] = f"redis+socket://{server.socket}"
    module: Any = importlib.import_module("tests.support.celery.release_app")
    for name, options in CALLS.items():
        module.app.conf.task_protocol = 1 if name == "protocol 1" else 2
        module.plain.apply_async((name,), **{"task_id": f"id of {name}", "countdown": 1, **options})
    module.app.tasks["single"].apply_async(("unique",), task_id="id of unique", countdown=1)
    push_task(module.durable.queue, "plain", ("pushed",), id="id of pushed", delay=1)
    module.durable.schedules.put("tick", timedelta(seconds=1), "plain", args=("schedule",))
    module.durable.schedules.run_now("tick")
    module.plain.apply_async(("revoked",), task_id="id of revoked", countdown=1)
    module.app.control.revoke("id of revoked")
    for number in range(3):
        module.app.tasks["flowing"].apply_async((f"flow {number}",), task_id=f"id of flow {number}")
    module.plain.apply_async(("in flight",), task_id="id of in flight")
    with connected(server) as connection:
        Taker(connection, ["shop"], 100, processes=2).take(2)
        yield


def main() -> None:
    """Write the file."""
    with RedisServer() as server, server.client() as client:
        fill_queues(client)
        fill_monitor(client)
        for _ in fill_celery(server):
            lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in dump(client).items()]
            # A line for each key: a difference shows what has changed.
            FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
