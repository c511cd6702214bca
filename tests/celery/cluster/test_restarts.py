"""A cluster whose nodes die while entries become due: no entry is lost or executed twice."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import redis
from pytest_celery import CeleryTestSetup  # type: ignore[import-untyped]
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from redis_queue import DelayQueue
from tests.support.wait import wait_until

PREFIX = "shop"


class Orders:
    """Reminders in the delay queue of a cluster, and the executed ones."""

    def __init__(self, setup: CeleryTestSetup) -> None:
        # A server that has just started again loads its data first.
        waits: Any = {"retry": Retry(ConstantBackoff(0.1), 100), "retry_on_error": [redis.exceptions.BusyLoadingError]}
        self._redis: redis.Redis = redis.Redis.from_url(setup.broker.config()["host_url"], **waits)
        self.queue = DelayQueue("scheduled", self._redis, prefix=PREFIX)

    def push(self, count: int) -> list[str]:
        """Store *count* reminders, due one after the other between two and three seconds from now."""
        ids = []
        for number in range(count):
            delay = 2 + number / count
            arguments = {"order": str(number), "due": time.time() + delay}
            payload = {"task": "tasks.orders.remind", "args": [], "kwargs": arguments, "options": {}}
            ids.append(self.queue.push(payload, delay=delay))
        return ids

    @property
    def executed(self) -> list[dict[str, Any]]:
        return [json.loads(row) for row in self._redis.lrange(f"{PREFIX}:orders:executed", 0, -1)]

    def assert_each_ran_once(self, ids: list[str]) -> None:
        """Check that each of *ids* was executed once and not early."""
        wait_until(lambda: len(self.executed) >= len(ids), description="all reminders to run")
        assert Counter(row["id"] for row in self.executed) == Counter(ids)
        assert all(row["ran"] >= row["due"] for row in self.executed)


def test_entries_due_while_the_only_worker_is_dead_run_after_its_restart(setup: CeleryTestSetup) -> None:
    orders = Orders(setup)
    ids = orders.push(30)
    setup.worker.kill()
    wait_until(lambda: orders.queue.stats().due == 30, description="all entries to be due")
    assert orders.executed == []

    setup.worker.restart()

    orders.assert_each_ran_once(ids)


def test_entries_survive_a_killed_redis_and_run_on_time_on_the_running_worker(setup: CeleryTestSetup) -> None:
    orders = Orders(setup)
    ids = orders.push(30)
    setup.broker.kill()
    setup.broker.restart()

    orders.assert_each_ran_once(ids)
