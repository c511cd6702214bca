"""Delayed tasks on several Redis, each with its share of the store and of the queues: the cost of a task."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from hashlib import blake2b
from typing import Any, Final

import redis
from celery import Celery

from benchmarks import recording
from benchmarks.modes import DELAYS, make_app
from benchmarks.server import private_redis
from benchmarks.worker.app import HIT, hit
from benchmarks.worker.workers import SOLO, Worker, worker
from redis_queue.celery import DurableTasks

COUNTS: Final = (1, 2, 4)
WORKERS: Final = 4
WITHIN: Final = 120.0
IDLE: Final = 5.0

Figures = dict[str, float]


def measure(count: int, tasks: int) -> Figures:
    """Send, dispatch and run *tasks* on *count* Redis with WORKERS workers in all; return the cost of each task."""
    with ExitStack() as stack:
        urls = [stack.enter_context(private_redis()) for _ in range(count)]
        workers = [stack.enter_context(worker(urls[number % count], DELAYS, SOLO)) for number in range(WORKERS)]
        clients = [stack.enter_context(redis.Redis.from_url(url)) for url in urls]
        apps = [stack.enter_context(_app(url)) for url in urls]
        before = _used(clients, workers)
        time.sleep(IDLE)
        idle = _used(clients, workers)
        _send(apps, tasks)
        _wait(workers, tasks)
        after = _used(clients, workers)
    found = {f"{name} per task": 1e6 * (after[name] - idle[name]) / tasks for name in after if name.endswith("us")}
    found |= {f"{name} per task": (after[name] - idle[name]) / tasks for name in after if not name.endswith("us")}
    found["requests per second while idle, in all"] = (idle["requests"] - before["requests"]) / IDLE
    found["largest share of the keys"] = max(_sizes(tasks, count)) / (tasks / count)
    return found


def share_of(key: str, count: int) -> int:
    """Return the share of *key*, as examples/compose/shares.py chooses it."""
    return max(range(count), key=lambda number: blake2b(f"{number} {key}".encode(), digest_size=8).digest())


def medians(found: Mapping[int, Sequence[Figures]]) -> Iterator[list[str]]:
    """Yield a row for each figure: its median for each number of Redis, and the ratios to one Redis of its round."""
    first = found[COUNTS[0]]
    for name in first[0]:
        row = [name]
        for rounds in found.values():
            ratios = sorted(own[name] / one[name] for own, one in zip(rounds, first, strict=True))
            spread = (
                f" ({statistics.median(ratios):.2f}, {ratios[0]:.2f}-{ratios[-1]:.2f})" if rounds is not first else ""
            )
            row.append(f"{statistics.median(figures[name] for figures in rounds):,.2f}{spread}")
        yield row


def balance(count: int) -> Iterator[tuple[int, float, float]]:
    """Yield numbers of keys, and the largest part of all tasks that one of *count* shares has of them.

    All keys have as many tasks; or the second has half as many as the first, the third a third, and so on.
    """
    for keys in (100, 1_000, 10_000, 100_000):
        equal, skewed = [0.0] * count, [0.0] * count
        for number in range(keys):
            share = share_of(f"key-{number}", count)
            equal[share] += 1
            skewed[share] += 1 / (number + 1)
        yield keys, max(equal) / sum(equal), max(skewed) / sum(skewed)


def _app(url: str) -> Celery:
    app = make_app(url, DELAYS)
    app.task(hit, name=HIT, shared=False)
    return app


def _sizes(tasks: int, count: int) -> list[int]:
    shares = [share_of(f"key-{number}", count) for number in range(tasks)]
    return [shares.count(number) for number in range(count)]


def _send(apps: Sequence[Celery], tasks: int) -> None:
    signatures: list[list[Any]] = [[] for _ in apps]
    for number in range(tasks):
        share = share_of(f"key-{number}", len(apps))
        signatures[share].append(apps[share].tasks[HIT].s(time.time()))
    for app, own in zip(apps, signatures, strict=True):
        DurableTasks(app).send_many(own, countdown=1)


def _wait(workers: Sequence[Worker], tasks: int) -> None:
    deadline = time.monotonic() + WITHIN
    while (ran := sum(recording.count(running.record) for running in workers)) < tasks:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{ran} of {tasks} tasks ran within {WITHIN:g} s")
        time.sleep(0.05)


def _used(clients: Sequence[redis.Redis], workers: Sequence[Worker]) -> Figures:
    """Return seconds of CPU, and counts, so far."""
    infos: list[Any] = [client.info() for client in clients]
    return {
        "CPU of Redis, us": sum(info["used_cpu_user"] + info["used_cpu_sys"] for info in infos),
        "CPU of workers, us": sum(running.cpu_seconds() for running in workers),
        "CPU of the sender, us": time.process_time(),
        "requests": sum(info["total_reads_processed"] for info in infos),
        "commands": sum(info["total_commands_processed"] for info in infos),
    }
