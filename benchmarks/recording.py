"""Record task starts: each run appends two doubles to one file, its start and its due time."""

from __future__ import annotations

import os
import struct
import time
from functools import cache
from pathlib import Path

VARIABLE = "BENCHMARK_RECORD"
"""The environment variable with the path of this file, for the processes of a worker."""

ROW = struct.Struct("dd")


def record(due: float) -> None:
    """Record the start of a task that was due at *due* (seconds since the epoch); atomic across processes."""
    os.write(_descriptor(), ROW.pack(time.time(), due))


@cache
def _descriptor() -> int:
    return os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def count(path: Path) -> int:
    """Return the number of started tasks."""
    return path.stat().st_size // ROW.size if path.exists() else 0


def rows(path: Path) -> list[tuple[float, float]]:
    """Return start and due time of each task, in order of the starts."""
    return sorted((start, due) for start, due in ROW.iter_unpack(path.read_bytes()))


def wait_for(path: Path, wanted: int, *, within: float) -> None:
    """Wait until *wanted* tasks have started; raises TimeoutError if they do not."""
    deadline = time.monotonic() + within
    while (found := count(path)) < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{found} of {wanted} tasks ran within {within:g} s")
        time.sleep(0.05)


def latenesses(path: Path) -> list[float]:
    """Return the milliseconds from due time to start, in ascending order."""
    return sorted((start - due) * 1000 for start, due in rows(path))


def quantile(ordered: list[float], part: float) -> float:
    """Return the quantile *part* of the *ordered* values."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
