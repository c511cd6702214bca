"""Celery with DurableTasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from benchmarks.delay.apps import Place, make_app, task_of
from benchmarks.peer_apps import ARGUMENT, URL

app = make_app(Place(URL, store=URL))


def schedule(dues: Sequence[float]) -> None:
    """Delay one task for each due time."""
    for due in dues:
        task_of(app).apply_async((due, ARGUMENT), eta=datetime.fromtimestamp(due, timezone.utc))


def commands() -> list[list[str]]:
    """Return the command of the worker."""
    command = ["celery", "-A", "benchmarks.peer_apps.delayed_app", "worker", "--concurrency", "2"]
    return [[*command, "--queues", "bench", "--loglevel", "WARNING"]]
