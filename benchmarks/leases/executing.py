"""Execution speed of empty tasks on one worker, and its commands while idle."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import redis

from benchmarks import recording
from benchmarks.children import child, wait_for_file
from benchmarks.leases.modes import QUEUE, STOCK, TASK, make_app

WITHIN = 300.0
IDLE = 20.0
SETTLE = 3.0


def tasks_per_second(url: str, mode: str, tasks: int) -> tuple[float, float]:
    """Return tasks per second, and commands per second of the idle worker."""
    client = redis.Redis.from_url(url)
    client.flushall()
    app = make_app(url, STOCK)
    with app.producer_pool.acquire() as producer:
        for _ in range(tasks):
            app.send_task(TASK, (0.0,), producer=producer)
    app.close()
    client.rename(QUEUE, "stash")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record, ready, log = folder / "record", folder / "ready", folder / "log"
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.leases.worker_app", "worker", "--pool", "prefork"]
        command += ["--concurrency", "2", "--without-mingle", "--without-gossip", "--loglevel", "WARNING"]
        variables = {
            "BENCHMARK_BROKER": url,
            "BENCHMARK_MODE": mode,
            "BENCHMARK_READY": str(ready),
            recording.VARIABLE: str(record),
        }
        with child(command, log, variables) as process:
            wait_for_file(ready, process, log)
            time.sleep(1)
            started = time.time()
            client.rename("stash", QUEUE)
            recording.wait_for(record, tasks, within=WITHIN)
            elapsed = recording.rows(record)[-1][0] - started
            time.sleep(SETTLE)
            before, since = _commands(client), time.monotonic()
            time.sleep(IDLE)
            return tasks / elapsed, (_commands(client) - before) / (time.monotonic() - since)


def _commands(client: redis.Redis) -> int:
    return int(client.info("stats")["total_commands_processed"])
