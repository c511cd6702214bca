"""CPU time and rate of one worker that empties a backlog."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.worker.backlog import Backlog
from benchmarks.worker.workers import worker

QUIET = 1.0
"""Seconds after the start of a worker before its backlog arrives."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """*rate*: settled tasks per second; *cpu*: microseconds of all processes of the worker per settled task."""

    rate: float
    cpu: float


def measure(url: str, mode: str, pool: str, tasks: int, *, seconds: float, broker: str = "") -> Throughput:
    """Let one worker settle *tasks* tasks, for at most *seconds*; it connects to *broker*, or else to *url*."""
    backlog = Backlog(url, tasks)
    try:
        with worker(broker or url, mode, pool) as running:
            time.sleep(QUIET)
            cpu, started = running.cpu_seconds(), time.monotonic()
            backlog.release()
            settled = backlog.wait(seconds)
            elapsed, cpu = time.monotonic() - started, running.cpu_seconds() - cpu
            backlog.check(max(1, settled))
            return Throughput(settled / elapsed, 1e6 * cpu / settled)
    finally:
        backlog.close()
