"""An app whose tasks are delayed in Redis, for real workers: `celery -A tests.support.celery.delaying_app worker`.

Tests configure it with environment variables: BROKER_URL, STORE_URL, QUEUE, SETTINGS as JSON, and TICKS: the
seconds between two ticks of beat, which go to the queue named QUEUE + "-ticks". Tasks record their runs in
NOTES_URL if it is set, else in the store.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis
from celery import Celery

from redis_queue.celery import DurableTasks, add_beat_entries
from redis_queue.store.connection import connect
from tests.support.celery.delaying_names import NOTE, RAN, STUBBORN

app = Celery("delaying", broker=os.environ["BROKER_URL"], backend=os.environ.get("RESULT_URL"), set_as_current=False)
app.conf.update(
    redis_queue_url=os.environ["STORE_URL"],
    task_default_queue=os.environ["QUEUE"],
    control_exchange=f"{os.environ['QUEUE']}-control",
    event_exchange=f"{os.environ['QUEUE']}-events",
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    **json.loads(os.environ.get("SETTINGS", "{}")),
)
if "TICKS" in os.environ:
    add_beat_entries(app, queue=f"{os.environ['QUEUE']}-ticks")
    app.conf.beat_schedule["redis-queue-delay-dispatch"]["schedule"] = float(os.environ["TICKS"])
delayed = DurableTasks(app, leases=False) if os.environ.get("DELAYED", "1") == "1" else None


def _store() -> redis.Redis:
    client = connect(os.environ.get("NOTES_URL", os.environ["STORE_URL"]), check=False)
    assert isinstance(client, redis.Redis)
    return client


@app.task(bind=True, name=NOTE, shared=False)  # type: ignore[untyped-decorator]
def note(self: Any, due: float = 0.0) -> str:
    """Record the due time and the time at which this task ran."""
    _store().rpush(RAN, json.dumps({"id": self.request.id, "due": due, "ran": time.time()}))
    return str(self.request.id)


@app.task(bind=True, name=STUBBORN, shared=False, max_retries=5)  # type: ignore[untyped-decorator]
def stubborn(self: Any, times: int, countdown: float) -> int:
    if self.request.retries < times:
        raise self.retry(countdown=countdown)
    note.run()
    return int(self.request.retries)
