"""Forecast: how many entries of which task fall due when."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.delay.queue import DelayQueue
from redis_queue.model import Entry, Unread

LOOKS: Final = 4
EACH: Final = 20
"""A window with more than :data:`LOOKS` times so many entries is looked into at so many places."""

DATA: Final = "(data)"
"""What is no task."""

LARGE: Final = "(large)"
"""Name in place of the task for entries that are too large to read."""

WINDOW_BYTES: Final = 256 * 1024
"""Bytes of records that are read of each window."""


@dataclass(frozen=True, slots=True)
class TaskForecast:
    """Counts of each task in each window, most frequent task first; *exact* unless some were estimated."""

    tasks: Sequence[tuple[str, Sequence[int]]]
    exact: bool


def by_task(queue: DelayQueue, windows: Sequence[tuple[datetime, int]], width: timedelta) -> TaskForecast:
    """Return who makes up *windows*, what :meth:`DelayQueue.forecast` returned for this *width*.

    Small windows are read as a whole; of a large one a sample is, whatever its size.
    """
    rows: dict[str, list[float]] = {}
    exact = True
    for number, (start, count) in enumerate(windows):
        if not count:
            continue
        found = _look(queue, None if number == 0 else start, start + width, width, count)
        exact = exact and len(found) >= count
        names = Counter(_name(entry) for entry in found)
        for name, times in names.items():
            rows.setdefault(name, [0.0] * len(windows))[number] = times * max(count, len(found)) / len(found)
    ordered = sorted(rows.items(), key=lambda row: (-sum(row[1]), row[0]))
    return TaskForecast([(name, [round(value) for value in values]) for name, values in ordered], exact)


def _name(entry: Entry) -> str:
    return LARGE if isinstance(entry.payload, Unread) else TaskEntry.of(entry).task or DATA


def _look(queue: DelayQueue, start: datetime | None, end: datetime, width: timedelta, count: int) -> list[Entry]:
    if count <= LOOKS * EACH:
        return queue.list(limit=count, due_after=start, due_before=end, max_bytes=WINDOW_BYTES)
    part = WINDOW_BYTES // LOOKS
    found = list(queue.list(limit=EACH, due_after=start, due_before=end, max_bytes=part))
    for look in range(1, LOOKS):
        # At random within its part of the window: what is stored at full minutes must not be all that is seen.
        point = end - width * ((LOOKS - look - random.random()) / LOOKS)
        found += queue.list(limit=EACH, due_after=point, due_before=end, max_bytes=part)
    return found
