"""The cost of many waiting entries in one Redis, measured step by step."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import redis
from celery import Celery

from redis_queue import DelayQueue
from redis_queue.celery import DurableTasks
from redis_queue.delay.model import Push

ARGUMENT = "x" * 200
DAY = 86400.0
FIRST = 10_000
CALLS = 200
BATCH = 500

Operation = Callable[[], object]


@dataclass(frozen=True)
class Step:
    """The figures at one number of waiting entries: bytes for each, milliseconds of each operation (median)."""

    entries: int
    size: float
    times: dict[str, float]


def fill(queue: DelayQueue, sample: Push, have: int, want: int) -> None:
    """Add entries until *want* are waiting, spread over the week after tomorrow."""
    for start in range(have, want, 50_000):
        numbers = range(start, min(want, start + 50_000))
        queue.push_many(
            _later(sample, f"{number:036d}", DAY + 7 * DAY * (number * 7919 % want) / want) for number in numbers
        )


def _later(sample: Push, id_: str, delay: float) -> Push:
    return Push(sample.payload, delay, None, id_, sample.headers, sample.destination)


def operations(queue: DelayQueue, sample: Push) -> dict[str, Operation]:
    """Return the timed operations; each call leaves the number of entries unchanged."""
    numbers = count()

    def due(total: int) -> list[Push]:
        return [_later(sample, f"due-{next(numbers)}", 0) for _ in range(total)]

    def push_and_cancel() -> None:
        queue.push(sample.payload, id="one", delay=DAY)
        queue.cancel("one")

    def push_and_move() -> None:
        queue.push_many(due(BATCH))
        assert queue.move_due(BATCH) == BATCH

    return {
        "push and cancel one": push_and_cancel,
        "reschedule one": lambda: queue.reschedule(f"{FIRST // 2:036d}", delay=2 * DAY),
        "get one": lambda: queue.get(f"{FIRST // 3:036d}"),
        "list a page of 100": lambda: queue.list(limit=100),
        "forecast of 24 hours": lambda: queue.forecast(24),
        "stats": queue.stats,
        "next due": queue.moves.due_in,
        f"push and move {BATCH}": push_and_move,
    }


def measure(queue: DelayQueue, sample: Push, client: redis.Redis, empty: int, entries: int) -> Step:
    """Return the figures of one step."""
    size = (used(client) - empty) / entries
    times = {}
    for name, operation in operations(queue, sample).items():
        calls = CALLS // 10 if str(BATCH) in name else CALLS
        times[name] = statistics.median(_timed(operation) for _ in range(calls)) * 1000
    return Step(entries, size, times)


def _timed(operation: Operation) -> float:
    start = time.perf_counter()
    operation()
    return time.perf_counter() - start


def used(client: redis.Redis) -> int:
    """Return the bytes that Redis has allocated."""
    found: Any = client.info("memory")
    return int(found["used_memory"])


def steps(url: str, most: int) -> Iterator[Step]:
    """Fill the queue and measure each step."""
    client: redis.Redis = redis.Redis.from_url(url)
    app = Celery("scaling", broker=url.replace("unix://", "redis+socket://"), set_as_current=False)
    app.conf.redis_queue_url = url
    delayed = DurableTasks(app, leases=False)
    id_ = app.send_task("shop.remind", (ARGUMENT,), countdown=DAY).id
    entry = delayed.queue.get(id_)
    assert entry is not None
    sample = Push(entry.payload, DAY, None, None, entry.headers or None, "celery")
    delayed.cancel(id_)
    empty, have, want = used(client), 0, FIRST
    while want <= most:
        fill(delayed.queue, sample, have, want)
        print(f"{want:,} waiting", file=sys.stderr)
        yield measure(delayed.queue, sample, client, empty, want)
        client.delete("celery")
        have, want = want, want * 10
