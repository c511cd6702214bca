"""What a failed assertion says: what was wanted, and what there is instead, closest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from redis_queue.testing.row import TaskRow
from redis_queue.testing.wanted import Age, Wanted, written

SHOWN: Final = 10
"""Tasks that a message names."""

MAX_CALL: Final = 200


def not_scheduled(
    wanted: Wanted, rows: Sequence[TaskRow], *, count: int, found: int, sent: Sequence[TaskRow], now: datetime, age: Age
) -> str:
    """Return the message for *found* tasks that match where *count* are wanted."""
    head = f"not scheduled: {wanted}" if not found else f"scheduled {_times(found)}, wanted {_times(count)}: {wanted}"
    closest = sorted(rows, key=lambda row: wanted.distance(row, age))
    lines = [head, "scheduled, closest first:" if rows else "nothing is scheduled"]
    lines += [_line(row, now, wanted.differences(row, age)) for row in closest[:SHOWN]]
    lines += _more(len(rows))
    at_once = [row for row in sent if wanted.task in (None, row.task)]
    if at_once and not found:
        lines.append("sent at once:")
        lines += [f"  {_short(row.call)}" for row in at_once[-SHOWN:]]
    return "\n".join(lines)


def scheduled_after_all(wanted: Wanted, rows: Sequence[TaskRow], now: datetime) -> str:
    """Return the message for tasks that must not be there."""
    lines = [f"scheduled, but must not be: {wanted}"]
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
