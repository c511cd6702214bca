"""celery_longterm_scheduler: its command once a second in one process, next to a Celery worker."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone

from celery import Celery
from celery_longterm_scheduler import get_scheduler

from benchmarks import recording
from benchmarks.peer_apps import ARGUMENT, URL

app = Celery("longterm", broker=URL, task_cls="celery_longterm_scheduler:Task", set_as_current=False)
app.conf.update(task_ignore_result=True, longterm_scheduler_backend=URL)


def hit(due: float, _argument: str) -> None:
    """Record the start."""
    recording.record(due)


task = app.task(hit, name="hit", shared=False)


def schedule(dues: Sequence[float]) -> None:
    """Delay one task for each due time."""
    for due in dues:
        task.apply_async((due, ARGUMENT), eta=datetime.fromtimestamp(due, timezone.utc))


def commands() -> list[list[str]]:
    """Return the commands of the scheduler and the worker."""
    module = "benchmarks.peer_apps.longterm_app"
    return [
        ["celery", "-A", module, "worker", "--concurrency", "2", "--loglevel", "WARNING"],
        [sys.executable, "-m", module],
    ]


def main() -> None:
    """Send due tasks every second."""
    # It looks up its stored tasks in the current app.
    app.set_current()
    while True:
        get_scheduler(app).execute_pending(datetime.now(timezone.utc))
        time.sleep(1)


if __name__ == "__main__":
    main()
