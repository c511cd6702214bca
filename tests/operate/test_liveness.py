"""Liveness: alive, busy, stuck or missing, by the last report of a worker."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis

from redis_queue.basics.histogram import Histogram
from redis_queue.monitor.model import RunningTask, Series, Tally, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import Access
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.items import running
from redis_queue.operate.liveness import liveness
from tests.support.clock import Clock, when
from tests.support.wait import wait_until


def row(**changes: Any) -> WorkerRow:
    """Return the report of an idle worker that has run for an hour."""
    now = datetime.now(timezone.utc)
    healthy = WorkerRow(
        "one@host",
        now,
        now - timedelta(hours=1),
        pool="prefork",
        loop_age=0.4,
        settled_age=1.0,
        keeper=True,
        lists=("mail",),
    )
    return replace(healthy, **changes)


CASES: list[tuple[dict[str, Any], int, str, str]] = [
    ({}, 0, "alive", "it waits for messages"),
    ({}, 5, "alive", "it waits for messages"),
    ({"settled_age": 90.0}, 0, "alive", "it waits for messages"),
    ({"settled_age": 90.0}, 5, "stuck", "5 messages wait, and it has settled nothing for 1 min 30 s"),
    ({"settled_age": None}, 5, "stuck", "5 messages wait, and it has settled nothing for 1 h"),
    ({"settled_age": 90.0, "lists": ()}, 5, "alive", "it waits for messages"),
    ({"settled_age": 90.0, "limited": 4}, 5, "alive", "rate limits hold 4 of its tasks back"),
    ({"settled_age": 90.0, "busy": 2}, 5, "busy", "it runs 2 tasks"),
    ({"loop_age": 95.0}, 0, "stuck", "its event loop is silent for 1 min 35 s"),
    ({"loop_age": 95.0, "busy": 1}, 0, "stuck", "its event loop is silent for 1 min 35 s"),
    ({"loop_age": 95.0, "busy": 1, "pool": "solo"}, 0, "busy", "it runs 1 tasks"),
    ({"loop_age": 95.0, "pool": "solo"}, 0, "stuck", "its event loop is silent for 1 min 35 s"),
    ({"loop_age": None}, 0, "alive", "it waits for messages"),
    ({"keeper": False}, 0, "stuck", "its keeper is dead, so other workers will take its tasks"),
    ({"keeper": None}, 0, "alive", "it waits for messages"),
]


@pytest.mark.parametrize(("changes", "waiting", "state", "reason"), CASES)
def test_the_state_follows_from_the_report(
    client: redis.Redis, changes: dict[str, Any], waiting: int, state: str, reason: str
) -> None:
    Reports(client, "p").write(row(**changes))
    if waiting:
        client.lpush("mail", *range(waiting))
    found = liveness(client, "p", "one@host", 60, next_report=0)
    assert (found.state, found.reason) == (state, reason)
    assert found.healthy is (state in ("alive", "busy"))


@pytest.mark.parametrize(
    ("changes", "state"),
    [({"busy": 1}, "busy"), ({"settled_age": 0.1}, "alive"), ({"limited": 1}, "alive"), ({}, "stuck")],
)
def test_of_messages_that_may_be_new_the_next_report_decides(
    client: redis.Redis, changes: dict[str, Any], state: str
) -> None:
    idle = row(settled_age=90.0)
    Reports(client, "p").write(idle)
    client.lpush("mail", "new")
    client.config_resetstat()
    judged = threading.Event()

    def report() -> None:
        wait_until(lambda: "cmdstat_llen" in client.info("commandstats"), description="a first look")
        while not judged.wait(0.05):
            Reports(client, "p").write(replace(idle, **changes))

    with ThreadPoolExecutor() as threads:
        reporter = threads.submit(report)
        try:
            found = liveness(client, "p", "one@host", 60, next_report=30)
        finally:
            judged.set()
        reporter.result()
    assert (found.state, found.waiting) == (state, 1)


def test_an_unknown_worker_is_missing(client: redis.Redis) -> None:
    found = liveness(client, "p", "nobody@host", 60)
    assert (found.state, found.reason, found.healthy) == ("missing", "no report within the last minute", False)


def test_a_worker_that_reported_long_ago_is_missing(client: redis.Redis) -> None:
    long_ago = round(datetime.now(timezone.utc).timestamp() * 1000) - 20_000
    Reports(client, "p", lambda: long_ago).write(row())
    assert liveness(client, "p", "one@host", 10).state == "missing"
    assert liveness(client, "p", "one@host", 60).state == "alive"


# Running tasks with the time that they usually take.


@pytest.fixture
def access(client: redis.Redis, clock: Clock) -> Access:
    """Two workers that run three tasks; one of them has a history of a hundred runs of 2 s."""
    reports = Reports(client, "p", clock)
    tally = Tally(100, duration=Histogram.of([2000] * 100))
    for worker, tasks in (("one@host", {"a": -2, "b": -300}), ("two@host", {"c": -20})):
        reports.write(
            WorkerRow(worker, when(0), when(-900)),
            [RunningTask(id_, f"shop.{id_}", "mail", worker, when(since)) for id_, since in tasks.items()],
            {Series("shop.b", "mail"): tally, Series("shop.a", "mail"): Tally(3, duration=Histogram.of([1] * 3))},
        )
    return Access(Inspector(client, prefix="p", clock=clock))


def test_the_longest_comes_first(access: Access) -> None:
    assert [(row.task.id, row.seconds) for row in running(access)] == [("b", 300.0), ("c", 20.0), ("a", 2.0)]


def test_names_are_searched_by_part(access: Access) -> None:
    assert [row.task.id for row in running(access, task="shop.c")] == ["c"]
    assert [row.task.id for row in running(access, worker="one")] == ["b", "a"]
    assert [row.task.id for row in running(access, limit=1)] == ["b"]


def test_a_task_that_takes_longer_than_usual_is_marked(access: Access) -> None:
    found = {row.task.id: row for row in running(access)}
    assert found["b"].is_slow
    assert (found["b"].p50, found["b"].p95) == (2.0, 2.0)
    assert (found["a"].p50, found["a"].is_slow, found["c"].p95) == (None, False, None)
