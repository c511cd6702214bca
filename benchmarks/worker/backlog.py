"""A backlog of empty tasks for one worker: published to a stash, then released to its queue at once."""

from __future__ import annotations

import json
import time
from typing import Any

import redis

from benchmarks.modes import QUEUE, STOCK
from benchmarks.worker.app import NOTHING, make_worker_app
from redis_queue.celery.message.headers import SENT

STASH = "stash"
ARGUMENT = "x" * 200
POLL = 0.02
COUNTED_WITHIN = 10.0


class Backlog:
    """*tasks* empty tasks with a 200-byte argument in an otherwise empty Redis at *url*."""

    def __init__(self, url: str, tasks: int) -> None:
        self.tasks = tasks
        self._app = make_worker_app(url, STOCK)
        # The monitor of commands tells this connection apart.
        self.client = redis.Redis.from_url(url, single_connection_client=True)
        self.client.flushall()
        self._app.send_task(NOTHING, (ARGUMENT,))
        sample: Any = self.client.rpop(QUEUE)
        message = json.loads(sample)
        # As a producer with the extension sends it; stock workers ignore it.
        message["headers"][SENT] = time.time_ns() // 1_000_000
        sample = json.dumps(message).encode()
        ids = message["headers"]["id"].encode(), message["properties"]["delivery_tag"].encode()
        with self.client.pipeline(transaction=False) as pipe:
            for number in range(1, tasks + 1):
                copy = sample
                for old in ids:
                    copy = copy.replace(old, b"%036d" % number)
                pipe.lpush(STASH, copy)
                if number % 500 == 0 or number == tasks:
                    pipe.execute()

    def release(self) -> None:
        """Move all tasks to the queue."""
        self.client.rename(STASH, QUEUE)

    def release_some(self, tasks: int, seconds: float) -> None:
        """Move *tasks* tasks to the queue, and wait until they are settled; raises RuntimeError after *seconds*."""
        chosen: Any = self.client.rpop(STASH, tasks)
        self.client.lpush(QUEUE, *chosen)
        deadline = time.monotonic() + seconds
        while left := self._unsettled():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{left} tasks are not settled after {seconds:g} s")
            time.sleep(POLL)

    def wait(self, seconds: float) -> int:
        """Wait until all tasks are settled, at most *seconds*; return the number of settled tasks."""
        deadline = time.monotonic() + seconds
        while (left := self._unsettled()) and time.monotonic() < deadline:
            time.sleep(POLL)
        return self.tasks - left

    def check(self, settled: int) -> None:
        """Raise RuntimeError if the worker executed fewer tasks than the *settled* ones."""
        deadline = time.monotonic() + COUNTED_WITHIN
        while (executed := self._executed()) < settled:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the worker settled {settled} tasks, but executed {executed}")

    def close(self) -> None:
        """Close the connections."""
        self._app.close()
        self.client.close()

    def _unsettled(self) -> int:
        with self.client.pipeline(transaction=False) as pipe:
            pipe.llen(QUEUE)
            pipe.hlen("unacked")
            waiting, in_flight = pipe.execute()
            return int(waiting) + int(in_flight)

    def _executed(self) -> int:
        replies = self._app.control.broadcast("stats", reply=True, timeout=COUNTED_WITHIN, limit=1)
        return sum(stats["total"].get(NOTHING, 0) for reply in replies for stats in reply.values())
