"""The app of the workers: ``celery -A benchmarks.flow.app worker``, configured by environment variables."""

from __future__ import annotations

import os
import time
from pathlib import Path

import redis
from celery import Celery
from celery.signals import worker_ready
from kombu.entity import Queue

from redis_queue.celery import DurableTasks

BROKER = "BENCHMARK_BROKER"
READY = "BENCHMARK_READY"
"""The environment variable with the file that a worker creates when it is ready."""

PLAIN, LIMITED, KEYED, RATED, FAIR = "plain", "limited", "keyed", "rated", "fair"
NOTHING, TELL = "benchmarks.flow.nothing", "benchmarks.flow.tell"
EVENTS = "events"
"""LIST of "<enter or leave> <key> <microseconds by Redis>"."""

RATE = 100
"""Starts per second of the queue with a rate."""

FLOWS = {
    # Never reached: what counting alone costs.
    f"queue:{LIMITED}": {"fair": "{key}", "limit": 1000, "limit_each": 100},
    f"queue:{KEYED}": {"key": "{key}", "limit": 1},
    f"queue:{RATED}": {"rate": f"{RATE}/s"},
    f"queue:{FAIR}": {"fair": "{key}", "limit": 50},
}

SCRIPT = """
local time = redis.call('TIME')
redis.call('RPUSH', KEYS[1], ARGV[1] .. ' ' .. string.format('%.0f', time[1] * 1000000 + time[2]))
"""

_clients: dict[int, redis.Redis] = {}


def make_app(url: str) -> tuple[Celery, DurableTasks]:
    """Return an app with the two tasks, and its DurableTasks."""
    made = Celery("benchmarks", broker=url, set_as_current=False)
    made.conf.update(
        task_default_queue=PLAIN,
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        redis_queue_flow=FLOWS,
        redis_queue_monitor=False,
    )
    made.conf.task_queues = [Queue(name, routing_key=name) for name in (PLAIN, LIMITED, KEYED, RATED, FAIR)]
    delayed = DurableTasks(made)
    made.task(nothing, name=NOTHING, shared=False)
    made.task(tell, name=TELL, shared=False)
    return made, delayed


def nothing(key: str, argument: str) -> None:
    """Do nothing."""


def tell(key: str, seconds: float) -> None:
    """Tell when it enters and leaves."""
    url = os.environ[BROKER]
    client = _clients.get(os.getpid())
    if client is None:
        client = _clients[os.getpid()] = redis.Redis.from_url(url)
    client.eval(SCRIPT, 1, EVENTS, f"enter {key}")
    if seconds:
        time.sleep(seconds)
    client.eval(SCRIPT, 1, EVENTS, f"leave {key}")


if BROKER in os.environ:
    app, _ = make_app(os.environ[BROKER])


@worker_ready.connect  # type: ignore[untyped-decorator]
def ready(**_: object) -> None:
    """Signal the benchmark that the worker consumes."""
    if path := os.environ.get(READY):
        Path(path).touch()
