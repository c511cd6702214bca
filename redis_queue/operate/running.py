"""Running tasks, as workers report them, with the time that they usually take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from redis_queue.monitor.model import RunningTask, Series
from redis_queue.operate.access import Access

USUAL_MINUTES: Final = 1440
"""Minutes of history from which the usual run time is estimated."""

LEAST_RUNS: Final = 20
"""Least runs for an estimate."""

MOST_READ: Final = 10_000
"""Most running tasks that are read for one page."""


@dataclass(frozen=True, slots=True)
class RunningRow:
    """A running task, for how many *seconds* it runs, and the p50 and p95 of its run time in the last day, if known."""

    task: RunningTask
    seconds: float
    p50: float | None = None
    p95: float | None = None

    @property
    def is_slow(self) -> bool:
        """Whether it takes longer than 95 % of the runs."""
        return self.p95 is not None and self.seconds > self.p95


def running(access: Access, *, task: str = "", worker: str = "", limit: int = 200) -> list[RunningRow]:
    """Return up to *limit* tasks that have run for a second or more, longest first; *task*, *worker*: parts of names.

    It reads up to :data:`MOST_READ` of them. Raises StoreError.
    """
    found = access.monitor.workers.running(limit=MOST_READ)
    matching = [row for row in found if task in row.task and worker in row.worker]
    matching.sort(key=lambda row: row.since)
    return list(_rows(access, matching[:limit], access.inspector.now()))


def _rows(access: Access, tasks: list[RunningTask], now: datetime) -> Iterator[RunningRow]:
    usual = access.monitor.history.totals(USUAL_MINUTES) if tasks else {}
    for task in tasks:
        seconds = max(0.0, (now - task.since).total_seconds())
        tally = usual.get(Series(task.task, task.queue))
        if tally is None or tally.duration.total < LEAST_RUNS:
            yield RunningRow(task, seconds)
        else:
            yield RunningRow(task, seconds, tally.duration.quantile(0.5), tally.duration.quantile(0.95))
