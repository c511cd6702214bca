"""A broker, a store and workers of `tests.support.celery.leasing_app`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil
import redis
from celery import Celery

from redis_queue.celery import DurableTasks
from tests.support.celery.forker import KEEPER
from tests.support.celery.leasing_names import ENDED, STARTED, WAIT, finish_key
from tests.support.celery.processes import CeleryProcess
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

TIMEOUT = 2.0
"""The lease of the workers in seconds."""


@dataclass
class Leasing:
    """Broker and store for the workers and the client of one app; *index* is kombu's index of messages in flight.

    Without a *broker_url*, the store is the broker. *broker* is a client of the broker, if that is another Redis than
    the store.
    """

    store: RedisServer
    client: redis.Redis
    broker_url: str = ""
    queue: str = "leasing"
    index: str = "unacked_index"
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    broker: redis.Redis | None = None

    def __post_init__(self) -> None:
        self.broker_url = self.broker_url or f"redis+socket://{self.store.socket}"

    @property
    def result_url(self) -> str:
        """URL of a result backend in files, so that results survive a killed server."""
        return f"file://{self.store.directory}"

    def worker(
        self,
        name: str,
        *arguments: str,
        leases: bool = True,
        pool: str = "solo",
        timeout: float = TIMEOUT,
        environment: Mapping[str, str] | None = None,
    ) -> CeleryProcess:
        """Return a worker that is not started yet; *environment* extends that of the process."""
        options = ("--pool", pool, "--concurrency", "1", "--loglevel", "INFO", "--hostname", f"{name}@%h")
        return CeleryProcess(
            *("-A", "tests.support.celery.leasing_app", "worker"),
            *options,
            *("--without-mingle", "--without-gossip"),
            *arguments,
            environment={
                "BROKER_URL": self.broker_url,
                "STORE_URL": self.store.url,
                "RESULT_URL": self.result_url,
                "QUEUE": self.queue,
                "LEASES": "1" if leases else "0",
                "SETTINGS": json.dumps(self.all_settings(timeout)),
                **(environment or {}),
            },
        )

    @contextmanager
    def busy(self, name: str, **options: Any) -> Iterator[CeleryProcess]:
        """Run a worker and yield it once its first task has started; the task runs until `end_task()` is called."""
        with self.worker(name, **options).ready() as worker:
            self.send(WAIT)
            self.wait_for_starts(1)
            yield worker

    def all_settings(self, timeout: float = TIMEOUT) -> dict[str, Any]:
        """Return the settings of the workers; *timeout* is their lease."""
        if self.broker_url.startswith("amqp"):
            return self.settings
        # kombu before 5.7 does not know `unacked_restore_interval`.
        options = {"unacked_restore_interval": 1, **self.options}
        return {"broker_transport_options": options, "redis_queue_task_lease": timeout, **self.settings}

    def app(self) -> Celery:
        app = Celery("leasing", broker=self.broker_url, backend=self.result_url, set_as_current=False)
        app.conf.update(redis_queue_url=self.store.url, task_default_queue=self.queue, **self.all_settings())
        return app

    def leases(self) -> DurableTasks:
        """Return the DurableTasks of such an app, with leases only."""
        return DurableTasks(self.app(), delays=False)

    def send(self, task: str, *args: Any, **options: Any) -> Any:
        return self.app().send_task(task, args, **options)

    def end_task(self, worker: str, count: int = 1) -> None:
        """Let *count* waiting tasks of *worker* end."""
        self.client.rpush(finish_key(worker), *["1"] * count)

    @property
    def started(self) -> list[str]:
        return texts(self.client, STARTED)

    @property
    def ended(self) -> list[str]:
        return texts(self.client, ENDED)

    def wait_for_starts(self, count: int, *, timeout: float = 40.0) -> list[str]:
        wait_until(lambda: len(self.started) >= count, timeout=timeout, description=f"{count} tasks to start")
        return self.started

    def wait_for_ends(self, count: int, *, timeout: float = 40.0) -> list[str]:
        wait_until(lambda: len(self.ended) >= count, timeout=timeout, description=f"{count} tasks to end")
        return self.ended

    def held(self) -> dict[bytes, float]:
        """Return the messages in flight: delivery tag -> start of the lease."""
        rows: Any = (self.broker or self.client).zrange(self.index, 0, -1, withscores=True)
        return dict(rows)

    def wait_for_leases(self, count: int, *, after: float = 0.0) -> None:
        """Return once *count* messages are in flight, each with a lease that counts from a time later than *after*."""

        def all_held() -> bool:
            times = self.held().values()
            return len(times) == count and min(times) > after

        wait_until(all_held, description=f"{count} messages to be held")

    def wait_for_renewal(self, tag: bytes, since: float, timeouts: float) -> None:
        """Wait until the lease of *tag* starts at least *timeouts* times its length after *since*."""
        wait_until(
            lambda: self.held().get(tag, 0.0) >= since + timeouts * TIMEOUT,
            timeout=timeouts * TIMEOUT + 15,
            description=f"the lease to be renewed for {timeouts} times its length",
        )

    def wait_until_settled(self) -> None:
        """Wait until no message is in flight."""
        wait_until(lambda: not self.held(), description="all messages to be settled")


def keeper_of(worker: CeleryProcess) -> psutil.Process:
    """Return the process that renews the leases of *worker*."""

    def find() -> psutil.Process | None:
        return next(filter(is_keeper, psutil.Process(worker.pid).children(recursive=True)), None)

    return wait_until(find, description="a keeper")


def is_keeper(process: psutil.Process) -> bool:
    """Tell whether a process renews leases."""
    return process.name() == KEEPER or "redis_queue.keeper" in process.cmdline()


def texts(client: redis.Redis, key: str) -> list[str]:
    rows: Any = client.lrange(key, 0, -1)
    return [row.decode() for row in rows]
