"""A worker of `tests.support.celery.observed_app`, its client, and readers of its reports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis
from celery import Celery

from redis_queue.celery import DurableTasks
from redis_queue.monitor.history import RunHistory
from redis_queue.monitor.model import Tally
from redis_queue.monitor.monitor import Runs, Workers
from tests.support.celery.processes import CeleryProcess
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

PREFIX = "redis_queue"
TASK_QUEUE = "celery"


@dataclass
class Observed:
    """Broker, store and readers of observed workers."""

    store: RedisServer
    client: redis.Redis
    broker_url: str
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.workers = Workers(self.client, PREFIX)
        self.history = RunHistory(self.client, PREFIX)
        self.runs = Runs(self.client, PREFIX)
        self.app = Celery("observed", broker=self.broker_url, set_as_current=False)
        self.app.conf.update(redis_queue_url=self.store.url, **self.settings)
        DurableTasks(self.app, leases=False)

    def worker(
        self, *arguments: str, pool: str = "threads", name: str = "one", environment: Mapping[str, str] | None = None
    ) -> CeleryProcess:
        """Return a worker, not started yet; *environment* extends that of the process."""
        return CeleryProcess(
            *("-A", "tests.support.celery.observed_app", "worker", "--pool", pool, "--concurrency", "2"),
            *("--without-gossip", "--without-mingle", "--hostname", f"{name}@test", *arguments),
            environment={**self.environment(), **(environment or {})},
        )

    def environment(self) -> dict[str, str]:
        """Return the variables by which the app is configured in another process."""
        return {"BROKER_URL": self.broker_url, "STORE_URL": self.store.url, "SETTINGS": json.dumps(self.settings)}

    def send(self, name: str, *args: Any, **options: Any) -> str:
        return str(self.app.send_task(name, args, **options).id)

    def tally(self, name: str) -> Tally:
        found = (tally for series, tally in self.history.totals(10).items() if series.task == name)
        return sum(found, Tally())

    def wait_for(self, name: str, ended: int) -> Tally:
        """Wait until so many runs of a task were reported, and return the counts."""

        def reported() -> Tally | None:
            tally = self.tally(name)
            return tally if tally.executed + tally.revoked >= ended else None

        return wait_until(reported, timeout=60, description=f"{ended} runs of {name} in the history")


@contextmanager
def observed_on_one_redis(*, results: bool = False, **settings: Any) -> Iterator[Observed]:
    """Yield a setup whose broker and store are one Redis of its own; with *results* it keeps results, too."""
    with RedisServer() as store, store.client() as client:
        url = f"redis+socket://{store.socket}"
        found = Observed(store, client, url, {**settings, **({"result_backend": url} if results else {})})
        try:
            yield found
        finally:
            found.app.close()
