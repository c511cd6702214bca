"""Bytes that reports take in Redis after a simulated week."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

import redis

from redis_queue.basics.histogram import Histogram
from redis_queue.monitor.model import Run, Series, Tally, WorkerRow
from redis_queue.monitor.report import MAX_ENDED, Reports
from redis_queue.store.keys import MonitorKeys

SERIES = 50
RATE = 1000
MINUTES = 7 * 1440
WORKERS = 100
PREFIX = "observed"
MAX_SERIES = 200
KEPT_DAYS = 120


@dataclass(frozen=True, slots=True)
class Week:
    """Bytes of all reports after a week, and at most: with 200 series that run in each minute of 120 days."""

    bytes: int
    bound: int


def simulate(url: str, tell: Callable[[str], None]) -> Week:
    """Write a week of reports of RATE tasks a second, minute by minute, and return their sizes."""
    clock = [1_700_000_000_000]
    with redis.Redis.from_url(url) as client:
        client.flushall()
        reports = Reports(client, PREFIX, lambda: clock[0])
        at = datetime.now(timezone.utc)
        for number in range(WORKERS):
            reports.write(WorkerRow(f"worker{number}@host", at, at, queues=("mail", "default"), versions={"a": "1"}))
        for minute in range(MINUTES):
            reports.write(tallies={_series(number): _tally() for number in range(SERIES)}, ended=_runs(minute, at))
            clock[0] += 60_000
            if minute % 1440 == 0:
                tell(f"day {minute // 1440 + 1} of 7")
        keys = MonitorKeys(PREFIX)
        sizes = {key: client.memory_usage(key, samples=0) or 0 for key in keys.all()}
    minutes, hours = (sum(sizes[key] for key in ring) for ring in (keys.minutes, keys.hours))
    others = sum(sizes.values()) - minutes - hours
    share = MAX_SERIES / SERIES
    return Week(sum(sizes.values()), round(share * (minutes + hours * KEPT_DAYS / 7) + others))


def _series(number: int) -> Series:
    return Series(f"shop.orders.tasks.task_number_{number}", "default")


def _tally() -> Tally:
    count = RATE * 60 // SERIES
    run, wait, late = (random.choice(_times(size)) for size in (count, count, count // 10))
    return Tally(count, count // 100, count // 50, 0, run, wait, late)


@functools.cache
def _times(count: int) -> list[Histogram]:
    """Return samples of *count* times; 95 % are within a factor of three of the median, as is usual for a task."""
    medians = [10 ** random.uniform(0.5, 3) for _ in range(100)]
    return [Histogram.of(random.lognormvariate(math.log(ms), 0.56) for _ in range(count)) for ms in medians]


def _runs(minute: int, at: datetime) -> list[Run]:
    return [
        Run(
            f"{minute:08}-{number:04}-4000-8000-000000000000",
            _series(number).task,
            "default",
            "worker1@host",
            "succeeded",
            at,
            at,
            at,
            root=f"{minute:08}-{number:04}-4000-8000-000000000000",
        )
        for number in range(MAX_ENDED)
    ]
