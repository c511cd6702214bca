"""An app whose tasks record the schedules that sent them: `celery -A tests.support.celery.periodic_app worker`.

Tests configure it with environment variables: BROKER_URL, STORE_URL, QUEUE, SETTINGS as JSON, and NOTES_URL: the Redis
in which tasks record their runs, by its clock.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import redis
from celery import Celery

from redis_queue.celery import DurableTasks
from tests.support.celery.periodic_names import APP, FAIL, GATE, RAN, TICK, WAIT

app = Celery(APP, broker=os.environ["BROKER_URL"], set_as_current=False)
app.conf.update(
    redis_queue_url=os.environ["STORE_URL"],
    task_default_queue=os.environ["QUEUE"],
    control_exchange=f"{os.environ['QUEUE']}-control",
    event_exchange=f"{os.environ['QUEUE']}-events",
    broker_connection_retry_on_startup=True,
    result_expires=None,
    **json.loads(os.environ["SETTINGS"]),
)
durable = DurableTasks(app)
if "FAKETIME" in os.environ:
    # libfaketime lets each clock_nanosleep fail, unless it also moves the monotonic clock, and then waits never end.
    time.sleep = threading.Event().wait  # type: ignore[assignment]


def _note(request: Any) -> redis.Redis:
    client = redis.Redis.from_url(os.environ["NOTES_URL"])
    seconds, micros = client.time()
    ran = {"id": request.id, "schedule": request.schedule, "due": request.scheduled_for, "at": seconds + micros / 1e6}
    client.rpush(RAN, json.dumps(ran))
    return client


@app.task(bind=True, name=TICK, shared=False)  # type: ignore[untyped-decorator]
def tick(self: Any, *_: Any) -> None:
    _note(self.request).close()


@app.task(bind=True, name=WAIT, shared=False)  # type: ignore[untyped-decorator]
def wait(self: Any) -> None:
    """Record this run, and end when a test opens the gate, or after 60 s."""
    with _note(self.request) as client:
        client.blpop([GATE], 60)


@app.task(bind=True, name=FAIL, shared=False)  # type: ignore[untyped-decorator]
def fail(self: Any) -> None:
    _note(self.request).close()
    raise ValueError("on purpose")
