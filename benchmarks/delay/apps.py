"""The Celery apps to compare: a stock one, and one with DurableTasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery import Celery

from benchmarks import recording
from redis_queue.celery import DurableTasks

TASK = "benchmarks.hit"
ARGUMENT = "x" * 200
"""The argument of each task."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where tasks wait and run: stock Celery if *store* is None, else DurableTasks there with the queue *entries*.

    With *atomic_fetch*, DurableTasks with leases and atomic fetch.
    """

    broker: str
    queue: str = "bench"
    store: str | None = None
    entries: str = "bench"
    atomic_fetch: bool = False

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> Place:
        """Return the place from the environment variables of a worker."""
        return cls(
            broker=variables.get("BENCHMARK_BROKER", "redis://localhost:6379/0"),
            queue=variables.get("BENCHMARK_QUEUE", "bench"),
            store=variables.get("BENCHMARK_STORE") or None,
            entries=variables.get("BENCHMARK_ENTRIES", "bench"),
            atomic_fetch=variables.get("BENCHMARK_ATOMIC_FETCH") == "1",
        )

    def environment(self) -> dict[str, str]:
        """Return the environment variables for a worker."""
        return {
            "BENCHMARK_BROKER": self.broker,
            "BENCHMARK_QUEUE": self.queue,
            "BENCHMARK_STORE": self.store or "",
            "BENCHMARK_ENTRIES": self.entries,
            "BENCHMARK_ATOMIC_FETCH": "1" if self.atomic_fetch else "",
        }


def hit(due: float, argument: str) -> None:  # noqa: ARG001 - its size counts, not its value
    """Record the start of a task that was due at *due*."""
    recording.record(due)


def make_app(place: Place) -> Celery:
    """Return an app with one task; only its broker and queue are configured."""
    # kombu has its own URL scheme for a unix socket.
    broker = place.broker.replace("unix://", "redis+socket://")
    app = Celery("benchmarks", broker=broker, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        task_default_queue=place.queue,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
    )
    app.task(hit, name=TASK, shared=False)
    if place.store is not None:
        app.conf.update(redis_queue_url=place.store, redis_queue_delay_queue=place.entries)
        app.conf.redis_queue_atomic_fetch = place.atomic_fetch
        DurableTasks(app, leases=place.atomic_fetch)
    return app


def task_of(app: Celery) -> Any:
    """Return the task of *app*."""
    return app.tasks[TASK]
