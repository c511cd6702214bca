"""The app of the workers: ``celery -A benchmarks.leases.worker_app worker``, configured by variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery.signals import worker_ready

from benchmarks.leases.modes import make_app

app = make_app(os.environ["BENCHMARK_BROKER"], os.environ["BENCHMARK_MODE"])


@worker_ready.connect  # type: ignore[untyped-decorator]
def tell(**_: Any) -> None:
    """Signal the benchmark that the worker consumes."""
    Path(os.environ["BENCHMARK_READY"]).touch()
