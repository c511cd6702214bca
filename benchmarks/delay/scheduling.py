"""The speed of delaying tasks, one by one and in bulk, and their memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.delay.apps import ARGUMENT, make_app, task_of
from benchmarks.delay.site import Site
from redis_queue.celery import DurableTasks

HOUR = 3600
WARM_UP = 200


def singly(task: Any, count: int, **options: Any) -> float:
    """Return how many tasks per second apply_async sends with *options*."""
    started = time.perf_counter()
    for _ in range(count):
        task.apply_async((0.0, ARGUMENT), **options)
    return count / (time.perf_counter() - started)


def in_bulk(delayed: DurableTasks, task: Any, count: int) -> float:
    """Return how many tasks per second send_many stores, including the creation of signatures."""
    started = time.perf_counter()
    delayed.send_many((task.s(0.0, ARGUMENT) for _ in range(count)), countdown=HOUR)
    return count / (time.perf_counter() - started)


def rates(site: Site) -> dict[str, float]:
    """Return the tasks per second of each way to delay."""
    scale = site.scale
    stock, delaying = make_app(site.stock()), make_app(site.delayed())
    contests: dict[str, Callable[[], float]] = {
        "native": lambda: singly(task_of(stock), scale.sent_singly, countdown=HOUR),
        "delayed": lambda: singly(task_of(delaying), scale.sent_singly, countdown=HOUR),
        "bulk": lambda: in_bulk(DurableTasks(delaying, leases=False), task_of(delaying), scale.sent_in_bulk),
    }
    for app in (stock, delaying):
        singly(task_of(app), WARM_UP, countdown=HOUR)
    found: dict[str, float] = {}
    for name, contest in contests.items():
        site.client().flushall()
        found[name] = contest()
    site.client().flushall()
    for app in (stock, delaying):
        app.close()
    return found


def sizes(site: Site) -> dict[str, float]:
    """Return the bytes per task, pending with DurableTasks and undelayed in a Celery list."""
    count = site.scale.sent_in_bulk
    stock, delaying = make_app(site.stock()), make_app(site.delayed())
    contests: dict[str, Callable[[int], float]] = {
        "pending": lambda many: in_bulk(DurableTasks(delaying, leases=False), task_of(delaying), many),
        "undelayed": lambda many: singly(task_of(stock), many),
    }
    found: dict[str, float] = {}
    for name, contest in contests.items():
        site.client().flushall()
        contest(1)
        before = site.used_memory()
        contest(count)
        found[name] = (site.used_memory() - before) / count
    site.client().flushall()
    for app in (stock, delaying):
        app.close()
    return found
