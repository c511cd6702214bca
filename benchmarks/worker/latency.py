"""Time from publish to start of single tasks on an idle worker."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence

import redis

from benchmarks import recording
from benchmarks.modes import QUEUE, STOCK
from benchmarks.worker.app import HIT, make_worker_app
from benchmarks.worker.workers import SOLO, worker

QUIET = 2.0
PAUSES = (0.03, 0.15)
"""Minimum and most seconds between two tasks."""
WITHIN = 30.0


def latencies(url: str, modes: Sequence[str], tasks: int) -> dict[str, list[float]]:
    """Return the milliseconds of *tasks* tasks of each mode in ascending order; the workers get them in turn."""
    redis.Redis.from_url(url).flushall()
    app = make_worker_app(url, STOCK)
    dice = random.Random(tasks)
    try:
        with contextlib.ExitStack() as stack, app.producer_pool.acquire() as producer:
            workers = {mode: stack.enter_context(worker(url, mode, SOLO, f"{QUEUE}-{mode}")) for mode in modes}
            time.sleep(QUIET)
            for _ in range(tasks):
                for mode in workers:
                    app.send_task(HIT, (time.time(),), producer=producer, queue=f"{QUEUE}-{mode}")
                    time.sleep(dice.uniform(*PAUSES))
            for running in workers.values():
                recording.wait_for(running.record, tasks, within=WITHIN)
            return {mode: recording.latenesses(running.record) for mode, running in workers.items()}
    finally:
        app.close()
