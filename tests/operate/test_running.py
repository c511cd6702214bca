"""Running tasks with the time that they usually take."""

from __future__ import annotations

import pytest
import redis

from redis_queue.basics.histogram import Histogram
from redis_queue.monitor.model import RunningTask, Series, Tally, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import Access
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.running import running
from tests.support.clock import Clock, when


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
    assert found["b"].p95 == pytest.approx(2.425)
    assert (found["a"].p50, found["a"].is_slow, found["c"].p95) == (None, False, None)
