"""With ten thousand workers that run a workflow of 80,000 tasks, one of them is found quickly."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import redis

from redis_queue.monitor.model import RunningTask, WorkerRow
from redis_queue.monitor.monitor import MAX_WORKERS, Workers
from redis_queue.monitor.rows import write_running, write_worker
from redis_queue.operate.liveness import worker_states
from redis_queue.store.chunks import CHUNK, chunks
from redis_queue.store.keys import MonitorKeys
from tests.support.clock import Clock, when
from tests.support.cpu import least_seconds
from tests.support.servers import RedisServer

MAX_SECONDS = 0.15
EACH = 8
WORKER = WorkerRow("", when(0), when(-60), host="host", queues=("mail",), busy=EACH)
TASK = RunningTask("", "shop.mail", "mail", "", when(-30), "(1,)", "{}", 1, 0, "held", root="root", group="group")
SEEN_MS = round(when(0).timestamp() * 1000)


@pytest.fixture(scope="module")
def crowded() -> Iterator[redis.Redis]:
    """A server with the reports of as many workers as are read; all tasks have the same root and group."""
    keys = MonitorKeys("p")
    with RedisServer() as server, server.client(socket_timeout=60) as client:
        for numbers in chunks(range(MAX_WORKERS)):
            tasks = {f"w{number}": [replace(TASK, id=f"{number}-{part}") for part in range(EACH)] for number in numbers}
            client.hset(keys.workers, mapping={name: f"{SEEN_MS} {write_worker(WORKER)}" for name in tasks})
            client.hset(keys.running, mapping={name: write_running(rows) for name, rows in tasks.items()})
        yield client


LOOKS: list[tuple[str, Callable[[Workers], object], object]] = [
    ("a task", lambda workers: getattr(workers.find_running("9999-7"), "worker", ""), "w9999"),
    ("no task", lambda workers: workers.find_running("10000-0"), None),
    ("the root of all, which does not run", lambda workers: workers.find_running("root"), None),
    ("a workflow", lambda workers: len(workers.related("root")), 1000),
    ("a part of a group", lambda workers: len(workers.related("group", limit=10)), 10),
]


def test_states_of_all_read_each_report_once(crowded: redis.Redis, clock: Clock) -> None:
    crowded.config_resetstat()
    assert len(worker_states(Workers(crowded, "p", clock))) == MAX_WORKERS
    calls = {name: stats["calls"] for name, stats in crowded.info("commandstats").items() if name != "cmdstat_config"}
    assert calls.pop("cmdstat_hmget") == MAX_WORKERS / CHUNK
    assert sum(calls.values()) <= 3


@pytest.mark.parametrize(("look", "expected"), [pytest.param(*row[1:], id=row[0]) for row in LOOKS])
def test_a_running_task_is_found_quickly(
    look: Callable[[Workers], object], expected: object, crowded: redis.Redis, clock: Clock
) -> None:
    workers = Workers(crowded, "p", clock)

    def find() -> None:
        assert look(workers) == expected

    assert least_seconds(find, MAX_SECONDS, crowded) <= MAX_SECONDS
