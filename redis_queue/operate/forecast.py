"""Forecast: entries due per time window, by task; and demand for workers, for an autoscaler."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import ConfigurationError, InvalidValueError, StoreError
from redis_queue.model import Entry, Unread
from redis_queue.operate.access import Access

SAMPLES: Final = 4
ENTRIES_PER_SAMPLE: Final = 20
"""A window with more entries than SAMPLES * ENTRIES_PER_SAMPLE is sampled."""

DATA: Final = "(data)"
"""Name in place of the task for entries that are not tasks."""

LARGE: Final = "(large)"
"""Name in place of the task for entries that are too large to read."""

WINDOW_BYTES: Final = 256 * 1024
"""Maximum bytes of records read per window."""

MAX_PER_REQUEST: Final = 20
"""Maximum number of queues of one request."""

MAX_SECONDS: Final = 3600

_SECONDS: Final = re.compile(r"\d{1,4}", re.ASCII)


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
    if count <= SAMPLES * ENTRIES_PER_SAMPLE:
        return queue.list(limit=count, due_after=start, due_before=end, max_bytes=WINDOW_BYTES)
    part = WINDOW_BYTES // SAMPLES
    found = list(queue.list(limit=ENTRIES_PER_SAMPLE, due_after=start, due_before=end, max_bytes=part))
    for look in range(1, SAMPLES):
        # At a random time within its part of the window, so that entries at full minutes are not all of the sample.
        point = end - width * ((SAMPLES - look - random.random()) / SAMPLES)
        found += queue.list(limit=ENTRIES_PER_SAMPLE, due_after=point, due_before=end, max_bytes=part)
    return found


@dataclass(frozen=True, slots=True)
class Demand:
    """Messages of *queues*: *ready* in the broker, *in_flight* with workers, *due* soon; *total* is their sum."""

    queues: Sequence[str]
    ready: int
    in_flight: int
    due: int
    total: int


def demand(access: Access, parameters: Sequence[tuple[str, str]]) -> Demand:
    """Return the demand of a request: ``queue`` (once or more) and ``due_within`` in seconds (0 to 3,600; default 0).

    Of many tasks that fall due soon, a sample is read. Raises InvalidValueError, InvalidNameError for an unknown queue,
    ConfigurationError without a Celery app, and StoreError if queues cannot be counted.
    """
    names, seconds = _read(parameters)
    queues = access.celery_queues
    if queues is None:
        raise ConfigurationError("Celery's queues are known to a Celery app only: use celery -A app redis-queue")
    rows = queues.known_rows(names)
    for row in rows:
        if row.error or row.ready is None:
            raise StoreError(f"queue {row.name!r} cannot be counted: {row.error or 'its broker does not tell'}")
    ready, in_flight = sum(row.ready or 0 for row in rows), sum(row.in_flight or 0 for row in rows)
    soon = by_destination(access.delay_queue(), timedelta(seconds=seconds)) if seconds else {}
    due = sum(soon.get(name, 0) for name in names)
    return Demand(names, ready, in_flight, due, ready + in_flight + due)


def _read(parameters: Sequence[tuple[str, str]]) -> tuple[list[str], int]:
    for name, _ in parameters:
        if name not in ("queue", "due_within"):
            raise InvalidValueError(f"{name[:60]!r}: unknown parameter; expected queue or due_within")
    names = list(dict.fromkeys(value for name, value in parameters if name == "queue"))
    if not 1 <= len(names) <= MAX_PER_REQUEST:
        raise InvalidValueError(f"queue: must be given 1 to {MAX_PER_REQUEST} times, got {len(names)}")
    times = [value for name, value in parameters if name == "due_within"]
    text = times[0] if times else "0"
    if len(times) > 1 or not _SECONDS.fullmatch(text) or int(text) > MAX_SECONDS:
        raise InvalidValueError(f"due_within={text[:60]!r}: must be given once, whole seconds from 0 to {MAX_SECONDS}")
    return names, int(text)
