"""A Celery worker process, stock or with DurableTasks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil

from benchmarks import recording
from benchmarks.children import child, wait_for_file
from benchmarks.delay.apps import Place

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Worker:
    """A running worker; *record* is the file in which its tasks record their start."""

    pid: int
    record: Path

    def memory(self) -> float:
        """Return the resident memory of the main process in MB (10^6 bytes)."""
        return float(psutil.Process(self.pid).memory_info().rss) / 1e6


@contextlib.contextmanager
def worker(place: Place, folder: Path) -> Iterator[Worker]:
    """Start a worker (prefork, two children) and yield it once it consumes."""
    number = next(_numbers)
    log, ready, record = (folder / f"worker-{number}.{kind}" for kind in ("log", "ready", "record"))
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.delay_app", "worker"]
    command += ["--pool", "prefork", "--concurrency", "2", "--without-mingle", "--without-gossip"]
    command += ["--queues", place.queue, "--hostname", f"bench{number}@localhost", "--loglevel", "WARNING"]
    variables = {**place.environment(), recording.VARIABLE: str(record), "BENCHMARK_READY": str(ready)}
    with child(command, log, variables) as process:
        wait_for_file(ready, process, log)
        yield Worker(process.pid, record)
