"""An app with tasks that run long or kill their process: `celery -A tests.support.celery.leasing_app worker`.

Tests configure it with environment variables: BROKER_URL, STORE_URL, RESULT_URL, QUEUE, LEASES, and SETTINGS as
JSON. Tasks record their runs in NOTES_URL if it is set, else in the store.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import redis
from celery import Celery, Task
from celery.worker.request import create_request_cls
from kombu.utils.imports import symbol_by_name

from redis_queue.celery import DurableTasks
from redis_queue.store.connection import connect
from tests.support.celery.leasing_names import (
    BATCH,
    DIE,
    DIE_TWICE,
    ENDED,
    HEALED,
    HOLD,
    MEASURE,
    MEASURED,
    STARTED,
    WAIT,
    finish_key,
)

app = Celery("leasing", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"], set_as_current=False)
app.conf.update(
    {
        "redis_queue_url": os.environ["STORE_URL"],
        "task_default_queue": os.environ["QUEUE"],
        "control_exchange": f"{os.environ['QUEUE']}-control",
        "event_exchange": f"{os.environ['QUEUE']}-events",
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        "broker_connection_retry_on_startup": True,
        **json.loads(os.environ.get("SETTINGS", "{}")),
    }
)
leases = DurableTasks(app, delays=False) if os.environ["LEASES"] == "1" else None


def _store() -> redis.Redis:
    client = connect(os.environ.get("NOTES_URL", os.environ["STORE_URL"]), check=False)
    assert isinstance(client, redis.Redis)
    return client


@app.task(bind=True, name=WAIT, shared=False)  # type: ignore[untyped-decorator]
def wait(self: Any) -> str:
    """Run until the test calls `end_task()` for this worker."""
    client = _store()
    client.rpush(STARTED, self.request.id)
    while client.blpop([finish_key(self.request.hostname.partition("@")[0])], timeout=1) is None:
        pass
    client.rpush(ENDED, self.request.id)
    return str(self.request.id)


class Batch(Task):  # type: ignore[misc]
    """As in celery-batches: one job of the pool is for two messages, and has no callback for errors."""

    abstract = True

    def Strategy(self, task: Any, app: Any, consumer: Any) -> Any:  # noqa: N802 - the name in Celery
        """Return what Celery calls with each message of the task."""
        base, hostname, eventer = symbol_by_name(task.Request), consumer.hostname, consumer.event_dispatcher
        request_class = create_request_cls(base, task, consumer.pool, hostname, eventer, app=app)
        waiting: list[Any] = []

        def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> None:
            options = {"on_ack": ack, "on_reject": reject, "app": app, "hostname": hostname, "task": task}
            waiting.append(request_class(message, headers=message.headers, body=message.body, **options))
            if len(waiting) == 2:
                requests, waiting[:] = list(waiting), []

                def done(_: Any) -> None:
                    for request in requests:
                        request.acknowledge()

                name = hostname.partition("@")[0]
                consumer.pool.apply_async(run_batch, ([request.id for request in requests], name), callback=done)

        return handle


def run_batch(ids: list[str], worker: str) -> None:
    """Run until the test calls `end_task()` for this worker."""
    client = _store()
    client.rpush(STARTED, *ids)
    while client.blpop([finish_key(worker)], timeout=1) is None:
        pass
    client.rpush(ENDED, *ids)


@app.task(base=Batch, name=BATCH, shared=False)  # type: ignore[untyped-decorator]
def batch() -> None:
    """Never run: its Strategy gives run_batch to the pool."""


@app.task(bind=True, name=HOLD, shared=False)  # type: ignore[untyped-decorator]
def hold_interpreter(self: Any, seconds: int) -> None:
    _store().rpush(STARTED, self.request.id)
    # A function called through PyDLL does not release the GIL.
    ctypes.PyDLL(None).sleep(seconds)
    _store().rpush(ENDED, self.request.id)


@app.task(name=MEASURE, shared=False)  # type: ignore[untyped-decorator]
def measure() -> None:
    """Record the numbers of open files and threads of this process, without garbage."""
    gc.collect()
    files = len(list(Path("/proc/self/fd").iterdir()))
    _store().rpush(MEASURED, json.dumps([files, threading.active_count()]))


@app.task(bind=True, name=DIE, shared=False)  # type: ignore[untyped-decorator]
def die(self: Any, how: str = "SIGKILL") -> None:
    """End the process of this task unless the key "healed" is set."""
    _store().rpush(STARTED, self.request.id)
    if not _store().exists(HEALED):
        if how == "sys.exit":
            sys.exit(1)
        if how == "os._exit":
            os._exit(1)
        if how == "KeyboardInterrupt":
            raise KeyboardInterrupt
        if how == "time limit":
            signal.pause()
        os.kill(os.getpid(), getattr(signal, how))
        signal.pause()
    _store().rpush(ENDED, self.request.id)


app.task(die.run.__func__, bind=True, name=DIE_TWICE, shared=False, max_deliveries=2)
