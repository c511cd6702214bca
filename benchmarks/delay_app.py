"""The app of the workers in `benchmarks.delay`: ``celery -A benchmarks.delay_app worker``, configured by variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery.signals import worker_ready

from benchmarks.delay.apps import Place, make_app

READY = "BENCHMARK_READY"
"""The environment variable with the file that a worker creates when it is ready."""

app = make_app(Place.from_environment(os.environ))


@worker_ready.connect  # type: ignore[untyped-decorator]
def tell(**_: Any) -> None:
    """Signal the benchmark that the worker consumes."""
    if path := os.environ.get(READY):
        Path(path).touch()
