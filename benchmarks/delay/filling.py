"""Store many entries quickly: one captured message under many ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from uuid import uuid4

from celery import Celery

from benchmarks.delay.apps import ARGUMENT, task_of
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.delay.model import Push

STEP = 50_000
FAR = 86400.0


def fill(
    app: Celery, entries: int, *, due_at: datetime | None = None, tell: Callable[[int], None] = lambda _: None
) -> None:
    """Store *entries* delayed tasks of *app*, due at *due_at* or else spread over the day after tomorrow."""
    delayed = StoredTasks.of(app)
    task = task_of(app)
    due = due_at.timestamp() if due_at else 0.0
    sample = task.apply_async((due, ARGUMENT), countdown=FAR).id
    entry = delayed.queue.get(sample)
    assert entry is not None
    destination = app.conf.task_default_queue if _shares(app) else None

    def pushes() -> Iterator[Push]:
        for number in range(entries):
            delay = None if due_at else FAR + FAR * (number * 7919 % entries) / entries
            yield Push(entry.payload, delay, due_at, str(uuid4()), entry.headers or None, destination)

    source = pushes()
    stored = 0
    while part := list(islice(source, STEP)):
        delayed.queue.push_many(part)
        stored += len(part)
        tell(stored)
    delayed.cancel(sample)


def _shares(app: Celery) -> bool:
    return "redis" in str(app.conf.broker_url)
