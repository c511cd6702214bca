"""The doctor's checks of work that goes wrong: tasks that always fail, and tasks that run for far too long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from redis_queue.basics.times import span_text
from redis_queue.doctor import Finding
from redis_queue.doctor.finding import first, warning
from redis_queue.monitor.model import Tally
from redis_queue.monitor.report import OTHER
from redis_queue.operate.access import Access
from redis_queue.operate.running import MOST_READ, RunningRow, running

MINUTES: Final = 60
"""Minutes of history in which failures count."""

LEAST_ENDS: Final = 20
"""Least runs of a task, besides those that were retried, for a finding about failures."""

FAILING: Final = 0.9
"""Least share of failures."""

LEAST_SECONDS: Final = 60.0
"""Least run time for a finding about a running task."""

FACTOR: Final = 500
"""Least multiple of the median of its run time in the last day."""


def failing_tasks(access: Access) -> Iterator[Finding]:
    """No task fails nearly always."""
    tallies: dict[str, Tally] = {}
    for series, tally in access.monitor.history.totals(MINUTES).items():
        if series != OTHER:
            tallies[series.task] = tallies.get(series.task, Tally()) + tally
    # A retry is no end: a task that fails after three of them has failed once.
    ends = {task: (tally.failed, tally.executed - tally.retried) for task, tally in tallies.items()}
    failing = [
        (failed, count, task)
        for task, (failed, count) in ends.items()
        if count >= LEAST_ENDS and failed >= FAILING * count
    ]

    def findings() -> Iterator[Finding]:
        for failed, count, task in sorted(failing, reverse=True):
            yield warning(
                f"{task} failed {failed:,} of {count:,} times in the last hour",
                f"see why: redis-queue failures list --task {task}",
            )

    yield from first(findings(), len(failing), "tasks fail nearly always", "redis-queue history")


def slow_tasks(access: Access) -> Iterator[Finding]:
    """No running task takes far longer than usual."""
    slow: dict[str, list[RunningRow]] = {}
    for row in running(access, limit=MOST_READ):
        if row.seconds >= LEAST_SECONDS and row.is_slow and row.p50 is not None and row.seconds >= FACTOR * row.p50:
            slow.setdefault(row.task.task, []).append(row)

    def findings() -> Iterator[Finding]:
        for task, (row, *others) in slow.items():
            id_ = row.task.id
            more = f"; {len(others):,} more runs of it take far too long" if others else ""
            yield warning(
                f"{task} has run for {span_text(row.seconds)} on {row.task.worker} (task {id_}), and half of its runs "
                f"take at most {span_text(row.p50)}{more}",
                f"find out what it waits for, and give it a time limit; to end it: redis-queue -A APP terminate {id_}",
            )

    yield from first(findings(), len(slow), "tasks run for far longer than usual", "redis-queue running")


CHECKS: Final[dict[str, Callable[[Access], Iterator[Finding]]]] = {
    "failing tasks": failing_tasks,
    "slow tasks": slow_tasks,
}
