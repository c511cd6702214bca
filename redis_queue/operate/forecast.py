"""Forecast: entries due per time window, by task."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.delay.queue import DelayQueue
from redis_queue.model import Entry, Unread

LOOKS: Final = 4
EACH: Final = 20
"""A window with more than LOOKS * EACH entries is sampled: EACH entries in LOOKS places."""

DATA: Final = "(data)"
"""Name in place of the task for entries that are not tasks."""

LARGE: Final = "(large)"
"""Name in place of the task for entries that are too large to read."""

WINDOW_BYTES: Final = 256 * 1024
"""Most bytes of records read per window."""


@dataclass(frozen=True, slots=True)
class TaskForecast:
    """Counts of each task in each window, most frequent task first; *exact* unless some were estimated."""

    tasks: Sequence[tuple[str, Sequence[int]]]
    exact: bool


def by_task(queue: DelayQueue, windows: Sequence[tuple[datetime, int]], width: timedelta) -> TaskForecast:
    """Return the tasks of *windows*, the result of :meth:`DelayQueue.forecast` for this *width*.

    Small windows are read completely; of a large one, a sample of fixed size.
    """
    return _forecast(queue, windows, width, _name)


def by_destination(queue: DelayQueue, within: timedelta) -> Mapping[str, int]:
    """Return for each Celery queue how many tasks fall due *within* this time; as :func:`by_task`."""
    found = _forecast(queue, queue.forecast(1, width=within), within, lambda entry: TaskEntry.of(entry).queue)
    return {name: sum(counts) for name, counts in found.tasks}


def _forecast(
    queue: DelayQueue, windows: Sequence[tuple[datetime, int]], width: timedelta, name_of: Callable[[Entry], str]
) -> TaskForecast:
    rows: dict[str, list[float]] = {}
    exact = True
    for number, (start, count) in enumerate(windows):
        if not count:
            continue
        found = _look(queue, None if number == 0 else start, start + width, width, count)
        exact = exact and len(found) >= count
        names = Counter(name_of(entry) for entry in found)
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
        # At a random time within its part of the window, so that entries at full minutes are not all of the sample.
        point = end - width * ((LOOKS - look - random.random()) / LOOKS)
        found += queue.list(limit=EACH, due_after=point, due_before=end, max_bytes=part)
    return found
