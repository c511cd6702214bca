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
from redis_queue.monitor.monitor import Workers
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import Access
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.items import running
from redis_queue.operate.liveness import WorkerState, liveness, state_of, with_tasks, worker_states
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
    ({"settled_age": 90.0}, 5, "stuck", "5 waiting messages, and it has settled nothing for 1 min 30 s"),
    ({"settled_age": None}, 5, "stuck", "5 waiting messages, and it has settled nothing for 1 h"),
    ({"settled_age": 90.0, "lists": ()}, 5, "alive", "it waits for messages"),
    ({"settled_age": 90.0, "limited": 4}, 5, "alive", "rate limits hold 4 of its tasks back"),
    ({"settled_age": 90.0, "busy": 2}, 5, "busy", "it runs 2 tasks"),
    ({"loop_age": 95.0}, 0, "stuck", "its event loop has not turned for 1 min 35 s"),
    ({"loop_age": 95.0, "busy": 1}, 0, "stuck", "its event loop has not turned for 1 min 35 s"),
    ({"loop_age": 95.0, "busy": 1, "pool": "solo"}, 0, "busy", "it runs 1 task"),
    ({"loop_age": 95.0, "pool": "solo"}, 0, "stuck", "its event loop has not turned for 1 min 35 s"),
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
    reason = "no worker has reported under this name within the last hour"
    assert (found.state, found.reason, found.healthy) == ("missing", reason, False)


@pytest.mark.parametrize(
    ("age", "stuck_after", "state", "healthy"),
    [
        (3, 60, "alive", True),
        (3, 2, "silent", False),
        (20, 60, "silent", True),
        (20, 10, "silent", False),
        (70, 86400, "lost", False),
        (3599, 60, "lost", False),
        (3601, 60, "missing", False),
    ],
)
def test_the_probe_goes_by_the_age_of_the_report(
    age: int, stuck_after: int, state: str, healthy: bool, client: redis.Redis
) -> None:
    seen = round(datetime.now(timezone.utc).timestamp() * 1000) - age * 1000
    Reports(client, "p", lambda: seen).write(row())
    found = liveness(client, "p", "one@host", stuck_after)
    assert (found.state, found.healthy) == (state, healthy)


@pytest.mark.parametrize(
    ("changes", "age", "state", "reason", "severity"),
    [
        ({}, 0.3, "alive", "it waits for messages", "good"),
        ({"busy": 2}, 5.0, "busy", "it runs 2 tasks", "good"),
        ({"busy": 2}, 7.0, "silent", "silent for 7 s", "warning"),
        ({"stopping": True}, 1.0, "stopping", "it shuts down; it runs 0 tasks", "warning"),
        ({"stopping": True}, 15.0, "silent", "silent for 15 s", "warning"),
        ({"loop_age": 0.345}, 42.0, "silent", "silent for 42 s", "bad"),
        ({"loop_age": 0.345}, 59.9, "silent", "silent for 59.9 s", "bad"),
        ({"keeper": False}, 7.0, "stuck", "its keeper is dead, so other workers will take its tasks", "bad"),
        ({"loop_age": 61.0}, 7.0, "stuck", "its event loop has not turned for 1 min 1 s", "bad"),
        ({"loop_age": 58.0}, 3.0, "stuck", "its event loop has not turned for 1 min 1 s", "bad"),
        ({}, 60.0, "silent", "silent for 1 min", "bad"),
        ({}, 61.0, "lost", "last seen 1 min 1 s ago; it ran nothing", "bad"),
        ({"busy": 2, "keeper": False}, 61.0, "lost", "last seen 1 min 1 s ago; it ran 2 tasks", "bad"),
    ],
)
def test_states_and_severities_follow_from_the_age(
    changes: dict[str, Any], age: float, state: str, reason: str, severity: str
) -> None:
    assert state_of(row(**changes), age) == (state, reason)
    assert WorkerState(row(**changes), age, *state_of(row(**changes), age)).severity == severity


@pytest.mark.parametrize(
    ("names", "busy", "text"),
    [
        (["shop.hang"], 1, "shop.hang for 4 min"),
        (["a", "b", "c"], 5, "a for 4 min, b for 4 min, c for 4 min and 2 more"),
        (["a"] * 100, 100, "a for 4 min, a for 4 min, a for 4 min and 97 more"),
    ],
)
def test_a_lost_worker_names_what_it_ran(
    names: list[str], busy: int, text: str, client: redis.Redis, clock: Clock
) -> None:
    tasks = [RunningTask(f"id{n}", name, "mail", "one@host", when(-240)) for n, name in enumerate(names)]
    Reports(client, "p", clock).write(WorkerRow("one@host", when(0), when(-900), busy=busy), tasks)
    clock.forward(180)
    workers = Workers(client, "p", clock)
    (found,) = with_tasks(workers, worker_states(workers))
    assert (found.state, found.reason) == ("lost", f"last seen 3 min ago; it ran {text}")
    assert (workers.rows(), workers.running(), workers.row("one@host")) == ([], [], None)


def test_problems_come_first_and_lost_workers_stay_for_an_hour(client: redis.Redis, clock: Clock) -> None:
    def report(*names: str, **changes: Any) -> None:
        for name in names:
            Reports(client, "p", clock).write(WorkerRow(name, when(0), when(-900), **changes))

    report("b-lost", "a-lost", "back", "left")
    Reports(client, "p", clock).write(WorkerRow("left", when(0), when(-900)), leaving=True)
    clock.forward(3590)
    report("a-silent")
    clock.forward(7)
    report("z-alive", "back")
    report("y-stuck", keeper=False)
    workers = Workers(client, "p", clock)
    names = ["y-stuck", "a-silent", "a-lost", "b-lost", "back", "z-alive"]
    assert [one.row.name for one in worker_states(workers)] == names
    assert [one.row.name for one in worker_states(workers, "lost")] == ["a-lost", "b-lost"]
    assert [row.name for row in workers.rows()] == ["a-silent", "back", "y-stuck", "z-alive"]
    assert [row.name for row in workers.rows(1)] == ["a-silent"]
    assert [row.name for row in workers.rows(2, part="-", lost=True)] == ["a-lost", "a-silent"]
    clock.forward(4)
    assert [one.row.name for one in worker_states(workers)] == ["y-stuck", "a-silent", "back", "z-alive"]


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
