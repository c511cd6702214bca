"""Many idle workers in forked processes: ``python -m benchmarks.worker.herd COUNTS WORKERS``, configured like the app.

Each is a whole Celery worker with the solo pool, whose keeper process alone is left out: it does nothing while its
worker is idle, and hundreds of them need too much memory. The file COUNTS has a number for each worker: how often its
event loop was woken by a socket, or 0 before the worker is ready. Timers do not count.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any

from celery.signals import worker_ready
from kombu.asynchronous import get_event_loop

from benchmarks.worker import app as worker_app
from redis_queue.celery.leases import leases
from redis_queue.keeper.protocol import RenewalTime

REPEAT = 600.0
"""Seconds after which a stock worker repeats its BRPOP."""
NUMBER = struct.Struct("Q")


class Counts:
    """The numbers in the file at *path*, shared by all processes that open it."""

    def __init__(self, path: Path, workers: int) -> None:
        with path.open("a+b") as file:
            file.truncate(workers * NUMBER.size)
            self._memory = mmap.mmap(file.fileno(), workers * NUMBER.size)

    def read(self) -> list[int]:
        """Return all numbers."""
        return [number for (number,) in NUMBER.iter_unpack(self._memory[:])]

    def add(self, worker: int) -> None:
        """Add one to the number of *worker*, which nobody else changes."""
        (number,) = NUMBER.unpack_from(self._memory, worker * NUMBER.size)
        NUMBER.pack_into(self._memory, worker * NUMBER.size, number + 1)


class NoKeeper:
    """A KeeperProcess that renews nothing."""

    renewed = RenewalTime(0.0, 0.0)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def write(self, line: bytes) -> bool:
        """Do nothing."""
        return bool(line)

    def close(self) -> None:
        """Do nothing."""


def run(counts: Counts, number: int) -> None:
    """Run worker *number* until killed."""

    def count(**_: Any) -> None:
        hub: Any = get_event_loop()
        poller = hub.poller
        poll = poller.poll

        def counted(timeout: float | None) -> Any:
            events = poll(timeout)
            if events:
                counts.add(number)
            return events

        poller.poll = counted
        counts.add(number)

    worker_ready.connect(count, weak=False)
    options = {f"without_{part}": True for part in ("gossip", "mingle", "heartbeat")}
    worker_app.app.Worker(
        pool="solo", concurrency=1, hostname=f"{number}@localhost", loglevel="WARNING", quiet=True, **options
    ).start()


def main(path: str, workers: str) -> None:
    """Fork the workers and wait to be killed."""
    vars(leases)["KeeperProcess"] = NoKeeper
    # Stock workers repeat BRPOP once a second, which would hide what a message wakes.
    worker_app.app.conf.broker_transport_options = {"polling_interval": REPEAT}
    worker_app.app.conf.worker_enable_remote_control = False
    worker_app.app.finalize()
    counts = Counts(Path(path), int(workers))
    for number in range(int(workers)):
        if os.fork() == 0:
            run(counts, number)
            os._exit(1)
        time.sleep(0.05)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
