"""Messages of failed assertions: the expectation, and the scheduled tasks, closest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from redis_queue.testing.expectation import Age, Expectation, written
from redis_queue.testing.task_row import TaskRow

SHOWN: Final = 10
"""Most tasks in a message."""

MAX_CALL: Final = 200


def not_scheduled(
    expectation: Expectation,
    rows: Sequence[TaskRow],
    *,
    count: int,
    found: int,
    sent: Sequence[TaskRow],
    now: datetime,
    age: Age,
) -> str:
    """Return the message for *found* matching tasks where *count* are expected."""
    counts = f"scheduled {_times(found)}, expected {_times(count)}" if found else "not scheduled"
    closest = sorted(rows, key=lambda row: expectation.distance(row, age))
    lines = [f"{counts}: {expectation}", "scheduled, closest first:" if rows else "nothing is scheduled"]
    lines += [_line(row, now, expectation.differences(row, age)) for row in closest[:SHOWN]]
    lines += _more(len(rows))
    at_once = [row for row in sent if expectation.task in (None, row.task)]
    if at_once and not found:
        lines.append("sent at once:")
        lines += [f"  {_short(row.call)}" for row in at_once[-SHOWN:]]
    return "\n".join(lines)


def still_scheduled(expectation: Expectation, rows: Sequence[TaskRow], now: datetime) -> str:
    """Return the message for *rows*, tasks that must not be scheduled."""
    lines = [f"scheduled, but must not be: {expectation}"]
    return "\n".join([*lines, *(_line(row, now, []) for row in rows[:SHOWN]), *_more(len(rows))])


def _line(row: TaskRow, now: datetime, wrong: Sequence[str]) -> str:
    left = timedelta(seconds=round((row.due_at - now).total_seconds()))
    due = f"in {left}" if left >= timedelta() else f"due since {-left}"
    retry = f", retry {row.retries}" if row.retries else ""
    other = f"  <- other {', '.join(wrong)}" if wrong else ""
    return f"  {_short(row.call)} {due} ({written(row.due_at)}), queue {row.queue}{retry}{other}"


def _short(call: str) -> str:
    return call if len(call) <= MAX_CALL else f"{call[:MAX_CALL]}..."


def _more(count: int) -> list[str]:
    return [f"  and {count - SHOWN} more"] if count > SHOWN else []


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
