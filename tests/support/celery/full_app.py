"""An app whose broker and store are one full Redis: `celery -A tests.support.celery.full_app worker`.

Tests configure it with environment variables: BROKER_URL, STORE_URL, ATOMIC_FETCH, NOTES_URL: the Redis in which
tasks record their runs, and STOCK: 1 for an app without DurableTasks.
"""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import Celery

from redis_queue.celery import DurableTasks
from tests.support.celery.full_names import ADD, AGAIN, RAN

app = Celery("full", broker=os.environ["BROKER_URL"], set_as_current=False)
app.conf.update(
    redis_queue_url=os.environ["STORE_URL"],
    redis_queue_atomic_fetch=os.environ["ATOMIC_FETCH"] == "1",
    task_acks_late=True,
    task_default_queue="full",
    redis_queue_task_lease=6,
    broker_connection_retry_on_startup=True,
)
durable = DurableTasks(app) if os.environ.get("STOCK") != "1" else None


def _note(task_id: str) -> None:
    with redis.Redis.from_url(os.environ["NOTES_URL"]) as client:
        client.rpush(RAN, task_id)


@app.task(bind=True, name=ADD, shared=False)  # type: ignore[untyped-decorator]
def add(self: Any, _padding: str = "") -> None:
    _note(self.request.id)


@app.task(bind=True, name=AGAIN, shared=False)  # type: ignore[untyped-decorator]
def again(self: Any, countdown: float) -> None:
    """Retry once."""
    if not self.request.retries:
        raise self.retry(countdown=countdown)
    _note(self.request.id)
