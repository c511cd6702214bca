"""How many of many idle workers one message wakes, and how soon it starts."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import redis

from benchmarks import recording
from benchmarks.children import child
from benchmarks.modes import QUEUE, STOCK
from benchmarks.worker import app
from benchmarks.worker.herd import Counts

START_WITHIN = 120.0
QUIET = 3.0
WINDOW = 0.25
"""Seconds in which a message must be settled, and all workers that it wakes must be idle again."""
IDLE = 10.0
"""Seconds without a message: the longest period of a timer that uses a socket."""
WITHIN = 30.0


@dataclass(frozen=True, slots=True)
class Wakeups:
    """*woken*: workers that one message woke (mean); *idle*: without a message (mean); *latencies*: ms, ascending."""

    woken: float
    idle: float
    latencies: list[float]


def measure(url: str, mode: str, workers: int, messages: int) -> Wakeups:
    """Publish *messages* messages to *workers* idle workers, each after the one before was settled.

    A worker counts as woken if a socket woke its event loop within a window after the publish. Its timers use sockets
    as well; what they wake in a window without a message is subtracted.
    """
    client = redis.Redis.from_url(url)
    client.flushall()
    publisher = app.make_worker_app(url, STOCK)
    with tempfile.TemporaryDirectory() as name, publisher.producer_pool.acquire() as producer:
        folder = Path(name)
        counts, record, log = Counts(folder / "counts", workers), folder / "record", folder / "log"
        variables = {app.BROKER: url, app.MODE: mode, recording.VARIABLE: str(record)}
        command = [sys.executable, "-m", "benchmarks.worker.herd", str(folder / "counts"), str(workers)]
        with child(command, log, variables):
            _wait(lambda: all(counts.read()), START_WITHIN, log)
            time.sleep(QUIET)
            idle = fmean(_woken(counts, lambda: None) for _ in range(round(IDLE / WINDOW)))
            woken = []
            for _ in range(messages):
                woken.append(_woken(counts, lambda: publisher.send_task(app.HIT, (time.time(),), producer=producer)))
                _wait(lambda: not client.llen(QUEUE) and not client.hlen("unacked"), WITHIN, log)
            latencies = recording.latenesses(record)
    publisher.close()
    return Wakeups(fmean(woken) - idle, idle, latencies)


def _woken(counts: Counts, publish: Callable[[], object]) -> int:
    before = counts.read()
    publish()
    time.sleep(WINDOW)
    return sum(now != then for now, then in zip(counts.read(), before, strict=True))


def _wait(fact: Callable[[], object], within: float, log: Path) -> None:
    deadline = time.monotonic() + within
    while not fact():
        if time.monotonic() > deadline:
            raise RuntimeError(f"idle workers do not get on:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)
