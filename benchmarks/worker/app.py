"""The app of the workers: ``celery -A benchmarks.worker.app worker``, configured by environment variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_ready

from benchmarks import recording
from benchmarks.modes import make_app

BROKER = "BENCHMARK_BROKER"
MODE = "BENCHMARK_MODE"
READY = "BENCHMARK_READY"
"""The environment variable with the file that a worker creates when it is ready."""

NOTHING = "benchmarks.nothing"
HIT = "benchmarks.hit"


def nothing(argument: str) -> None:
    """Do nothing."""


def hit(sent: float) -> None:
    """Record the start of a task that was published at *sent*."""
    recording.record(sent)


def make_worker_app(url: str, mode: str) -> Celery:
    """Return an app with the two tasks."""
    made = make_app(url, mode)
    made.task(nothing, name=NOTHING, shared=False)
    made.task(hit, name=HIT, shared=False)
    return made


if BROKER in os.environ:
    app = make_worker_app(os.environ[BROKER], os.environ[MODE])


@worker_ready.connect  # type: ignore[untyped-decorator]
def tell(**_: Any) -> None:
    """Signal the benchmark that the worker consumes."""
    if path := os.environ.get(READY):
        Path(path).touch()
