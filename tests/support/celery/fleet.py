"""A store, a broker and workers of `tests.support.celery.delaying_app`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis
from celery import Celery

from redis_queue.celery import DurableTasks
from tests.support.celery.brokers import close_results
from tests.support.celery.delaying_names import NOTE, RAN
from tests.support.celery.processes import CeleryProcess
from tests.support.servers import RedisServer
from tests.support.wait import wait_until


@dataclass
class Fleet:
    """A broker and a store for the workers and the client of one app."""

    store: RedisServer
    client: redis.Redis
    broker_url: str
    queue: str
    settings: dict[str, Any] = field(default_factory=dict)
    apps: list[Celery] = field(default_factory=list)

    def close(self) -> None:
        """Close the connections of the apps of this process; a garbage-collected open socket would raise a warning."""
        for app in self.apps:
            close_results(app)
            app.close()

    @property
    def result_url(self) -> str:
        """URL of a result backend in files, so that results survive a killed server."""
        return f"file://{self.store.directory}"

    def worker(
        self,
        *arguments: str,
        delayed: bool = True,
        name: str = "one",
        pool: str = "threads",
        app: str = "tests.support.celery.delaying_app",
        mingle: bool = False,
    ) -> CeleryProcess:
        """Return a worker, not started yet; with *mingle*, it asks others for revoked ids (one second slower)."""
        options = ("--pool", pool, "--concurrency", "2", "--loglevel", "INFO", "--hostname", f"{name}@%h")
        return CeleryProcess(
            *("-A", app, "worker"),
            *options,
            *("--without-gossip", *([] if mingle else ["--without-mingle"])),
            *arguments,
            environment=self.environment(delayed=delayed),
        )

    def dispatcher(self) -> CeleryProcess:
        """Return a process that only dispatches, not started yet."""
        return CeleryProcess(
            *("-A", "tests.support.celery.delaying_app", "redis-queue", "dispatch"),
            environment=self.environment(),
            beat=False,
        )

    def environment(self, *, delayed: bool = True) -> dict[str, str]:
        return {
            "BROKER_URL": self.broker_url,
            "STORE_URL": self.store.url,
            "RESULT_URL": self.result_url,
            "QUEUE": self.queue,
            "SETTINGS": json.dumps(self.settings),
            "DELAYED": "1" if delayed else "0",
        }

    def wait_for_control(self, workers: int = 1) -> None:
        """Return once so many workers get broadcasts: they subscribe a moment after they say that they are ready."""

        def subscribed() -> bool:
            rows: Any = self.client.client_list()
            return sum(int(row["psub"]) > 0 for row in rows) >= workers

        wait_until(subscribed, description=f"{workers} workers to subscribe")

    def app(self, **settings: Any) -> Celery:
        """Return an app with the same name as the workers', without DurableTasks."""
        app = Celery("delaying", broker=self.broker_url, backend=self.result_url, set_as_current=False)
        app.conf.update(
            redis_queue_url=self.store.url,
            task_default_queue=self.queue,
            control_exchange=f"{self.queue}-control",
            event_exchange=f"{self.queue}-events",
            **{**self.settings, **settings},
        )
        self.apps.append(app)
        return app

    def delayed(self, **settings: Any) -> DurableTasks:
        return DurableTasks(self.app(**settings), leases=False)

    @property
    def ran(self) -> list[dict[str, Any]]:
        """Return the executed tasks: id, due and run time."""
        return [json.loads(row) for row in self.client.lrange(RAN, 0, -1)]

    def wait_for(self, count: int, *, timeout: float = 40.0) -> list[dict[str, Any]]:
        """Wait for at least *count* executed tasks and return them."""
        wait_until(lambda: len(self.ran) >= count, timeout=timeout, description=f"{count} tasks to run")
        return self.ran


@contextmanager
def fleet_on_one_redis() -> Iterator[Fleet]:
    """Yield a fleet whose store and broker are one Redis of its own."""
    with (
        RedisServer() as store,
        store.client() as client,
        closing(Fleet(store, client, f"redis+socket://{store.socket}", "delaying")) as fleet,
    ):
        yield fleet


def send(delayed: DurableTasks, countdown: float, **options: Any) -> Any:
    due = time.time() + countdown
    return delayed.app.send_task(NOTE, kwargs={"due": due}, countdown=countdown, **options)
