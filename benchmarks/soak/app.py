"""The app of the soak: ``celery -A benchmarks.soak.app worker``; a day of reports in minutes."""

from __future__ import annotations

import gc
import itertools
import linecache
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from celery import Celery

from redis_queue import Flow, Unique
from redis_queue.celery import DurableTasks
from redis_queue.celery.monitor import step
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.report import Reports

URL: Final = "SOAK_URL"
RUNS: Final = "SOAK_RUNS"
"""The environment variable with the file to which each run appends a byte."""

START: Final = "SOAK_START"
SPEED: Final = "SOAK_SPEED"
"""The environment variables with the start of the day, and with how many of its seconds pass in a second."""

BLOCKS: Final = "blocks-"
"""With a process id: the file beside that of the runs with the blocks of a process."""

QUEUE: Final = "soak"
PREFIX: Final = "redis_queue"
SCHEDULES: Final = 10

Clock = Any


def virtual_clock(start: float, speed: float) -> int:
    """Return the time of the day of the soak, in ms."""
    return round(1000 * (start + speed * (time.time() - start)))


def make_app(url: str) -> Celery:
    """Return the app, with a task of each kind."""
    app = Celery("soak", broker=url, set_as_current=False)
    app.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        redis_queue_schedules=True,
        beat_schedule={f"every-{n}": {"task": "soak.quick", "schedule": 0.5} for n in range(SCHEDULES)},
    )
    DurableTasks(app)
    runs = os.open(os.environ.get(RUNS, os.devnull), os.O_WRONLY | os.O_APPEND)

    @app.task(name="soak.quick")  # type: ignore[untyped-decorator]
    def quick(*_: int) -> None:
        os.write(runs, b".")

    @app.task(name="soak.again", bind=True)  # type: ignore[untyped-decorator]
    def again(self: Any, number: int) -> None:
        if not self.request.retries:
            raise self.retry(countdown=1)
        quick(number)

    @app.task(name="soak.failing")  # type: ignore[untyped-decorator]
    def failing(number: int) -> None:
        quick(number)
        if number % 1000 < 100:
            # Else the memory of these failures goes up for long, see __main__.
            gc.collect()
        raise ValueError(f"soak {number}")

    @app.task(name="soak.limited", flow=Flow(limit=2, key="{key}"))  # type: ignore[untyped-decorator]
    def limited(number: int, key: int) -> None:
        quick(number, key)

    @app.task(name="soak.unique", unique=Unique("{key}"))  # type: ignore[untyped-decorator]
    def unique(number: int, key: int) -> None:
        quick(number, key)

    return app


def calls(app: Celery) -> Any:
    """Yield calls without end: of 100, 78 immediate, 10 delayed, 4 that retry, 1 that fails, 5 limited, 2 unique."""
    task = app.tasks
    for number in itertools.count():
        kind, key = number % 100, number // 100 % 50
        if kind < 78:
            yield partial(task["soak.quick"].delay, number)
        elif kind < 88:
            yield partial(task["soak.quick"].apply_async, (number,), countdown=1 + kind % 5)
        elif kind < 92:
            yield partial(task["soak.again"].delay, number)
        elif kind < 93:
            yield partial(task["soak.failing"].delay, number)
        elif kind < 98:
            yield partial(task["soak.limited"].delay, number, key)
        else:
            # A call while the task before waits or runs starts none: no two calls in a row have the same key.
            yield partial(task["soak.unique"].delay, number, f"{key}-{kind}")


def _speed_up() -> None:
    """Let this worker report as often as it would in a day, by the clock of the day."""
    clock = partial(virtual_clock, float(os.environ[START]), float(os.environ[SPEED]))
    vars(step)["INTERVAL"] = 1 / float(os.environ[SPEED])
    vars(step)["Reports"] = partial(Reports, clock=clock)
    vars(step)["Failures"] = partial(Failures, clock=clock)
    signal.signal(signal.SIGUSR2, _collect)


def _collect(*_: object) -> None:
    """Collect the garbage, and tell how many blocks of memory Python still uses; pool processes inherit this."""
    # The sources of files that are named in tracebacks: 20,000 lines, once a connection was lost in a task.
    linecache.clearcache()
    gc.collect()
    found = Path(os.environ[RUNS]).with_name(f"{BLOCKS}{os.getpid()}")
    found.with_suffix(".new").write_text(str(sys.getallocatedblocks()))
    found.with_suffix(".new").replace(found)


if SPEED in os.environ:
    _speed_up()
    app = make_app(os.environ[URL])
