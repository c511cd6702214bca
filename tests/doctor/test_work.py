"""The checks of work that goes wrong: tasks that always fail, and tasks that run for far too long."""

from __future__ import annotations

import pytest
import redis

from redis_queue.basics.histogram import Histogram
from redis_queue.monitor.model import RunningTask, Series, Tally, WorkerRow
from redis_queue.monitor.report import OTHER, Reports
from redis_queue.operate.access import Access
from redis_queue.operate.incidents.registry import MAX_OF_KIND
from redis_queue.operate.inspector import Inspector
from tests.support.clock import Clock, when
from tests.support.doctor.stage import problems

FAILING, SLOW = "failing tasks", "slow tasks"


@pytest.fixture
def access(client: redis.Redis, clock: Clock) -> Access:
    return Access(Inspector(client, clock=clock))


class TestFailing:
    def test_a_task_that_always_fails(self, access: Access, reports: Reports) -> None:
        reports.write(
            tallies={
                Series("shop.charge", "mail"): Tally(100, 100),
                Series("shop.charge", "other"): Tally(1020, 1015),
                Series("shop.mail", "mail"): Tally(20, 20),
            }
        )
        first, second = problems(access, FAILING)
        assert (first.severity, first.found) == ("warning", "shop.charge failed 1,115 of 1,120 times in the last hour")
        assert first.advice == "see why: redis-queue failures list --task shop.charge"
        assert second.found == "shop.mail failed 20 of 20 times in the last hour"

    @pytest.mark.parametrize(
        ("tally", "fails"),
        [
            (Tally(19, 19), False),
            (Tally(100, 89), False),
            (Tally(100, 90), True),
            # Each run is retried three times, then it fails.
            (Tally(80, 20, 60), True),
            (Tally(80, 15, 60), False),
            (Tally(100, 0, 100), False),
            (Tally(0, 0, 0, 100), False),
        ],
    )
    def test_only_with_enough_runs(self, access: Access, reports: Reports, tally: Tally, *, fails: bool) -> None:
        reports.write(tallies={Series("shop.charge", "mail"): tally})
        assert bool(problems(access, FAILING)) is fails

    def test_only_lately(self, access: Access, reports: Reports, clock: Clock) -> None:
        reports.write(tallies={Series("shop.charge", "mail"): Tally(100, 100)})
        clock.forward(3660)
        reports.write(tallies={Series("shop.mail", "mail"): Tally(1)})
        assert problems(access, FAILING) == []

    def test_many_are_counted(self, access: Access, reports: Reports) -> None:
        reports.write(tallies={OTHER: Tally(100, 100)})
        assert problems(access, FAILING) == []
        reports.write(tallies={Series(f"t{number}", "q"): Tally(100, 100) for number in range(MAX_OF_KIND + 2)})
        *rows, last = problems(access, FAILING)
        assert (len(rows), last.found) == (MAX_OF_KIND, "2 more failing tasks")


class TestSlow:
    def run(self, reports: Reports, usual_ms: list[float], *since: float) -> None:
        """Report tasks that have run for so many seconds, and the times that earlier ones took."""
        tasks = [
            RunningTask(f"id{n}", "shop.charge", "mail", "a@test", when(-seconds)) for n, seconds in enumerate(since)
        ]
        tally = Tally(len(usual_ms), duration=Histogram.of(usual_ms))
        reports.write(WorkerRow("a@test", when(0), when(-9000)), tasks, {Series("shop.charge", "mail"): tally})

    def test_a_task_that_runs_for_far_too_long(self, access: Access, reports: Reports) -> None:
        self.run(reports, [40.0] * 100, 5, 61, 7500, 70)
        [said] = problems(access, SLOW)
        assert said.severity == "warning"
        assert said.found == (
            "shop.charge has run for 2 h 5 min on a@test (task id2), and half of its runs take at most 40 ms; others "
            "that take far too long: 2"
        )
        assert said.advice.endswith("redis-queue -A APP terminate id2")

    @pytest.mark.parametrize(
        ("usual_ms", "seconds"),
        [
            ([40.0] * 19, 7500),
            ([1.0] * 100, 59),
            ([2000.0] * 100, 500),
            # Some of its runs always take long.
            ([40.0] * 90 + [3_000_000.0] * 10, 1800),
            ([], 7500),
        ],
    )
    def test_only_with_enough_runs(
        self, access: Access, reports: Reports, usual_ms: list[float], seconds: float
    ) -> None:
        self.run(reports, usual_ms, seconds)
        assert problems(access, SLOW) == []
