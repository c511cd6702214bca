"""Incidents of workers and of tasks: lost or stuck workers, failures, retries, tasks that run for too long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from shlex import quote
from typing import Final

from redis_queue.basics.options import counted
from redis_queue.basics.times import span_text
from redis_queue.monitor.model import RunningTask, Tally
from redis_queue.operate.incidents.situation import (
    LONG,
    MINUTES,
    Incident,
    Situation,
    page_of,
    tasks_text,
    usual_seconds,
)
from redis_queue.operate.liveness import HEALTHY

RECENT: Final = 15
"""Minutes in which failures and retries are recent; those before are the usual ones."""

MIN_ENDS: Final = 10
"""Minimum recent and earlier ends of a task, to compare its failures."""

MIN_FAILED: Final = 5
"""Minimum recent failures, of up to 500 ends."""

MANY_FAILED: Final = 100
"""Recent failures that matter however many tasks ended; below, they are 1 % of the ends or more."""

MAX_RELEASES: Final = 10
"""Maximum number of releases of the last hour since which failures are compared."""

ROSE_BY: Final = 3.0
"""Minimum factor by which the share of failures rose."""

MOST_FAIL: Final = 0.5
"""Share of recent failures that makes an error of a warning."""

ALL_FAIL: Final = 0.9
"""Minimum share of failures within the hour of a task that fails nearly always."""

MIN_ALL: Final = 20
"""Minimum ends of such a task."""

MIN_RETRIES: Final = 50
"""Minimum recent retries of a retry storm."""

RETRIES_PER_END: Final = 3
"""Minimum recent retries for each task that ended."""

FACTOR: Final = 500
"""Minimum multiple of the median of its run time for which a slow task has run."""


def broken_workers(now: Situation) -> Iterator[Incident]:
    """Every worker reports, and works."""
    for worker in now.workers:
        if worker.state in HEALTHY:
            continue
        row, lost = worker.row, worker.state == "lost"
        # The reason of a lost one says what it ran.
        runs = [] if lost else now.runs.get(row.name, [])
        state = worker.reason if worker.state == "silent" else f"{worker.state}: {worker.reason}"
        yield Incident(
            row.name,
            "error" if worker.severity == "bad" and not lost else "warning",
            f"worker {row.name} is {state}{'; it runs ' if runs else ''}{tasks_text(now, runs)}",
            "if it is gone for good, clear it on the page of workers" if lost else "restart it",
            page_of("workers", name=row.name),
            row.seen_at - timedelta(seconds=row.loop_age or 0.0),
            row.busy + row.prefetched,
        )


def failing_tasks(now: Situation) -> Iterator[Incident]:
    """No task fails nearly always, or far more often than before."""
    spans = _spans(now)
    for task, minutes in now.ended_by_task.items():
        cause, length = _rise(spans, minutes)
        recent = minutes[-length:]
        ends = sum(recent, Tally())
        if not cause and not (ends.ends >= MIN_ALL and ends.share >= ALL_FAIL):
            continue
        yield Incident(
            task,
            "error" if cause and ends.share >= MOST_FAIL else "warning",
            f"{task} failed {cause or f'{ends.failed:,} of {ends.ends:,} times in the last hour'}",
            f"see why: redis-queue failures list --task {quote(task)}",
            page_of("failures", task=task),
            _first(now, recent, lambda minute: minute.failed),
            ends.failed,
        )


def retry_storms(now: Situation) -> Iterator[Incident]:
    """No task is retried far more often than it ends."""
    for task, minutes in now.ended_by_task.items():
        recent = sum(minutes[-RECENT:], Tally())
        if recent.retried < MIN_RETRIES or recent.retried < RETRIES_PER_END * recent.ends:
            continue
        yield Incident(
            task,
            "warning",
            f"{task} was retried {recent.retried:,} times in the last {RECENT} min, and only {recent.ends:,} of its "
            "tasks ended",
            "limit the rate of its retries (retry_backoff), or pause its queue until the cause is gone",
            page_of("history", task=task),
            _first(now, minutes, lambda minute: minute.retried),
            recent.retried,
        )


def slow_tasks(now: Situation) -> Iterator[Incident]:
    """No running task takes far longer than usual."""
    slow: dict[str, list[tuple[RunningTask, float]]] = {}
    for task in sorted(now.running, key=lambda task: task.since):
        usual, long, age = usual_seconds(now, task), usual_seconds(now, task, 0.95), now.age(task.since)
        # Some of the runs of a task may always take long.
        if usual is not None and long is not None and age >= max(LONG, FACTOR * usual, long):
            slow.setdefault(task.task, []).append((task, usual))
    for name, rows in slow.items():
        (task, usual), others = rows[0], len(rows) - 1
        more = f"; others that take far too long: {others:,}" if others else ""
        yield Incident(
            name,
            "warning",
            f"{name} has run for {span_text(now.age(task.since))} on {task.worker} (task {task.id}), and half of its "
            f"runs take at most {span_text(usual)}{more}",
            "find out what it waits for, and give it a time limit; to end it: redis-queue -A APP terminate "
            f"{quote(task.id)}",
            page_of("running", task=name),
            task.since,
            len(rows),
        )


def _spans(now: Situation) -> dict[str, int]:
    """Return the spans in which a task may fail more often than before, with their minutes: the releases' first."""
    minute = int(now.at.timestamp() // 60)
    spans = {
        # The minute in which it began belongs to it.
        f"since release {row.release} began {span_text(now.age(row.first_at), parts=1)} ago": length
        for row in now.releases[:MAX_RELEASES]
        if (length := max(1, minute - int(row.first_at.timestamp() // 60) + 1)) < MINUTES
    }
    return {**spans, f"in the last {RECENT} min": RECENT}


def _rise(spans: Mapping[str, int], minutes: Sequence[Tally]) -> tuple[str, int]:
    """Return how often a task fails more often than before, since a release if that tells; "" if it does not.

    Also return the number of minutes in which it does: all without a rise.
    """
    for since, length in spans.items():
        before, recent = sum(minutes[:-length], Tally()), sum(minutes[-length:], Tally())
        if _rose(before, recent):
            earlier = f"{before.failed:,} of {counted(before.ends, 'time')} in the {len(minutes) - length} min before"
            return f"{recent.failed:,} of {counted(recent.ends, 'time')} {since}, and {earlier}", length
    return "", len(minutes)


def _rose(before: Tally, recent: Tally) -> bool:
    enough = before.ends >= MIN_ENDS and recent.ends >= MIN_ENDS
    matters = recent.failed >= max(MIN_FAILED, min(MANY_FAILED, recent.ends / 100))
    return enough and matters and recent.share > ROSE_BY * before.share


def _first(now: Situation, minutes: Sequence[Tally], count: Callable[[Tally], int]) -> datetime:
    """Return when the last row of minutes with a *count* began, without gaps of more than :data:`RECENT` minutes."""
    first = last = len(minutes) - 1
    for number in range(last, -1, -1):
        if count(minutes[number]):
            first = number
        elif first - number > RECENT:
            break
    return now.at.replace(second=0, microsecond=0) - timedelta(minutes=last - first)
