"""A Celery worker as a process of its own."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import recording
from benchmarks.children import child, wait_for_file
from benchmarks.modes import QUEUE
from benchmarks.worker import app

SOLO = "solo"
PREFORK = "prefork"
POOLS = {
    SOLO: ("--pool", "solo", "--concurrency", "1", "--prefetch-multiplier", "64"),
    PREFORK: ("--pool", "prefork", "--concurrency", "2", "--prefetch-multiplier", "4"),
}

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Worker:
    """A running worker; *record* is the file in which its tasks record their start."""

    pid: int
    record: Path

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its processes so far: main process, pool and keeper; needs Linux."""
        return sum(self._processes().values()) / _TICKS

    def thread_seconds(self) -> float:
        """Return the CPU time of all threads of its processes that run now, exactly; needs Linux.

        The kernel samples the times of :meth:`cpu_seconds` at its ticks, which blames threads that wake up with them.
        """
        total = 0
        for pid in self._processes():
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):
                    total += int(path.read_text().split()[0])
        return total / 1e9

    def _processes(self) -> dict[int, int]:
        """Return the ticks of each of its processes; those of ended children count for their parent."""
        parents, ticks = {}, {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # The name of the program may contain spaces.
                fields = path.read_text().rpartition(")")[2].split()
                pid = int(path.parent.name)
                parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
        family = {self.pid}
        while found := {pid for pid, parent in parents.items() if parent in family and pid not in family}:
            family |= found
        return {pid: ticks.get(pid, 0) for pid in family}


@contextlib.contextmanager
def worker(url: str, mode: str, pool: str, queue: str = QUEUE) -> Iterator[Worker]:
    """Start a worker that consumes *queue* at *url*, and yield it when it is ready."""
    with tempfile.TemporaryDirectory() as folder:
        log, ready, record = (Path(folder) / name for name in ("log", "ready", "record"))
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.worker.app", "worker", *POOLS[pool]]
        command += ["--queues", queue, "--hostname", f"{mode}@localhost", "--loglevel", "WARNING"]
        command += ["--without-mingle", "--without-gossip"]
        variables = {app.BROKER: url, app.MODE: mode, app.READY: str(ready), recording.VARIABLE: str(record)}
        with child(command, log, variables) as process:
            wait_for_file(ready, process, log)
            try:
                yield Worker(process.pid, record)
            finally:
                # A warm shutdown may take long while tasks are left.
                process.kill()
