"""A store, a broker, and processes of `tests.support.celery.periodic_app`: workers, dispatchers and beats."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

import redis
from celery import Celery

from redis_queue.celery import DurableTasks
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.schedules.state import State
from tests.support.celery.periodic_names import APP, RAN
from tests.support.celery.processes import CeleryProcess
from tests.support.servers import RedisServer
from tests.support.wait import must, wait_until

INTERVAL = 0.5
"""Seconds between two checks of a dispatcher: it replaces a silent leader after two and a half times as long."""

LEASE = 3
"""Seconds of the leases of tasks and entries."""


@dataclass
class Rota:
    """The processes of one app, and its schedules as the test sees them."""

    server: RedisServer
    client: redis.Redis
    broker_url: str
    queue: str = "periodic"
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    store_url: str = ""

    def with_settings(self, **settings: Any) -> Rota:
        return replace(self, settings={**self.settings, **settings})

    def process(self, *arguments: str, beat: bool = False) -> CeleryProcess:
        environment = {
            "BROKER_URL": self.broker_url,
            "STORE_URL": self.store_url or self.server.url,
            "NOTES_URL": self.server.url,
            "QUEUE": self.queue,
            "SETTINGS": json.dumps(self._settings),
            **self.environment,
        }
        return CeleryProcess("-A", "tests.support.celery.periodic_app", *arguments, environment=environment, beat=beat)

    def worker(self, name: str = "one", pool: str = "threads", *arguments: str) -> CeleryProcess:
        options = ("--concurrency", "2", "--loglevel", "INFO", "--hostname", f"{name}@%h", "--without-gossip")
        return self.process("worker", "--pool", pool, *options, "--without-mingle", *arguments)

    def beat(self) -> CeleryProcess:
        return self.process("beat", "-S", "redis_queue", "--loglevel", "INFO", "--pidfile", "", beat=True)

    def dispatcher(self) -> CeleryProcess:
        return self.process("redis-queue", "dispatch")

    @property
    def _settings(self) -> dict[str, Any]:
        short = {"redis_queue_dispatch_interval": INTERVAL, "redis_queue_dispatch_lease": LEASE}
        return {**short, "redis_queue_task_lease": LEASE, **self.settings}

    @cached_property
    def app(self) -> Celery:
        """The app of this test, with the settings and the name of that of the processes."""
        app = Celery(APP, broker=self.broker_url, set_as_current=False)
        url = self.store_url or self.server.url
        app.conf.update(redis_queue_url=url, task_default_queue=self.queue, result_expires=None)
        app.conf.update(control_exchange=f"{self.queue}-control", **self._settings)
        return app

    @cached_property
    def durable(self) -> DurableTasks:
        return DurableTasks(self.app, leases=False)

    @property
    def schedules(self) -> Schedules:
        return self.durable.schedules

    @property
    def ran(self) -> list[dict[str, Any]]:
        return [json.loads(row) for row in self.client.lrange(RAN, 0, -1)]

    def dues(self, name: str) -> list[int]:
        """Return the due times (ms) of the runs of a schedule, in order."""
        return [ms_of(row["due"]) for row in self.ran if row["schedule"] == name]

    def wait_for(self, name: str, count: int, *, timeout: float = 40.0) -> list[int]:
        """Wait until a schedule has run so many times; return the due times."""
        wait_until(lambda: len(self.dues(name)) >= count, timeout=timeout, description=f"{count} runs of {name}")
        return self.dues(name)

    def state(self, name: str) -> State:
        return must(must(self.schedules.store.get([name])[0]).state)

    def settle(self, *names: str, every: int) -> None:
        """Pause schedules of *every* ms, and wait until what was sent has run, each due time once and none left out.

        Raises AssertionError for a due time that was sent twice, or neither sent nor skipped.
        """
        for name in names:
            self.schedules.pause(name)
        for name in names:
            state = self.state(name)
            dues = self.wait_for(name, state.runs)
            first = state.since + every
            assert Counter(dues).most_common(1)[0][1] == 1
            assert set(dues) <= set(range(first, state.due, every))
            assert len(dues) == state.runs
            assert len(range(first, state.due, every)) == state.runs + state.skipped

    def ids_by_due(self, name: str) -> dict[int, set[str]]:
        found: dict[int, set[str]] = defaultdict(set)
        for row in self.ran:
            if row["schedule"] == name:
                found[ms_of(row["due"])].add(row["id"])
        return found

    def close(self) -> None:
        self.app.close()


def ms_of(text: str) -> int:
    """Return a time of a header in ms."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


@contextmanager
def rota_on_one_redis(*args: str, **options: Any) -> Iterator[Rota]:
    """Yield a rota whose broker and store are one Redis of its own, started with *options*."""
    with RedisServer(*args, **options) as server, server.client() as client:
        rota = Rota(server, client, f"redis+socket://{server.socket}")
        try:
            yield rota
        finally:
            rota.close()
