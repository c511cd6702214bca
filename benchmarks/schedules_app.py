"""The app of the processes in `benchmarks.schedules`, configured by environment variables.

``celery -A benchmarks.schedules_app worker`` and ``beat`` are stock Celery without BENCHMARK_STORE.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from celery import Celery
from celery.beat import PersistentScheduler
from celery.schedules import crontab
from celery.signals import worker_ready

from benchmarks import recording
from redis_queue.celery import DurableTasks

URL: Final = "BENCHMARK_URL"
STORE: Final = "BENCHMARK_STORE"
"""Whether DurableTasks is on: "1" or ""."""

ENTRIES: Final = "BENCHMARK_ENTRIES"
"""The ``beat_schedule``: "spread 10000", or "at 30 12 10000", all at 12:30; or ""."""

READY: Final = "BENCHMARK_READY"
TASK: Final = "benchmarks.tick"
QUEUE: Final = "bench"

NEAR: Final = 300
"""Entries of "spread" that fall due during the measurement; the others are due tomorrow."""

DAY: Final = 86_400.0


def make_app(url: str, *, store: bool) -> Celery:
    """Return an app on the Redis at *url*, with DurableTasks if *store*."""
    made = Celery("benchmarks", broker=url.replace("unix://", "redis+socket://"), set_as_current=False)
    made.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        result_expires=None,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        redis_queue_url=url,
    )
    made.task(tick, name=TASK, shared=False, bind=True)
    if store:
        DurableTasks(made)
    return made


def tick(self: Any, due: float = 0.0) -> None:
    """Record the start of a run and when it was due: by its schedule, or *due*."""
    scheduled = getattr(self.request, "scheduled_for", None)
    recording.record(datetime.fromisoformat(scheduled).timestamp() if scheduled else due)


def schedules_of(kind: str) -> dict[str, Any]:
    """Return the schedules of the entries *kind*, those that are due last first."""
    name, *numbers = kind.split()
    if name == "at":
        minute, hour, count = map(int, numbers)
        return {f"s{number}": crontab(minute, hour) for number in range(count)}
    far = {f"s{number}": DAY for number in range(NEAR, int(numbers[0]))}
    # Between 20 and 50 s, no two alike.
    return far | {f"s{number}": 20 + number / 10 for number in range(NEAR)}


class MeasuredScheduler(PersistentScheduler):  # type: ignore[misc]
    """Stock beat, whose messages tell when their entry was due: an interval after the run before."""

    def apply_async(self, entry: Any, *args: Any, **options: Any) -> Any:
        """Send a run."""
        if not isinstance(entry.schedule, crontab):
            due = entry.last_run_at + entry.schedule.run_every
            entry.options = {**entry.options, "headers": {"scheduled_for": due.isoformat()}}
        return super().apply_async(entry, *args, **options)


if URL in os.environ:
    app = make_app(os.environ[URL], store=bool(os.environ.get(STORE)))
    if os.environ.get(ENTRIES):
        app.conf.beat_schedule = {
            name: {"task": TASK, "schedule": schedule} for name, schedule in schedules_of(os.environ[ENTRIES]).items()
        }


@worker_ready.connect  # type: ignore[untyped-decorator]
def tell(**_: Any) -> None:
    """Signal the benchmark that the worker consumes."""
    if path := os.environ.get(READY):
        Path(path).touch()
