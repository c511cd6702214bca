"""An app whose tasks end in every way: `celery -A tests.support.celery.observed_app worker`.

Tests configure it with environment variables: BROKER_URL, STORE_URL, SETTINGS as JSON, LATER: whether it has one more
task, TASK_CLASS: name of the class of its tasks.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from celery import Celery, chord
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from redis_queue.celery import DurableTasks
from redis_queue.store.connection import connect
from tests.support.celery.observed_names import (
    AGAIN,
    CANVAS,
    CRASH,
    DIE,
    FAIL,
    GATE,
    HEADERS,
    HUGE,
    IGNORE,
    LATER,
    LONG,
    MENDED,
    OK,
    PATIENT,
    REJECT,
    SEEN,
)

app = Celery("observed", broker=os.environ["BROKER_URL"], task_cls=os.environ.get("TASK_CLASS"), set_as_current=False)
app.conf.update(
    redis_queue_url=os.environ["STORE_URL"],
    broker_connection_retry_on_startup=True,
    redis_queue_task_lease=20,
    **json.loads(os.environ.get("SETTINGS", "{}")),
)
delayed = DurableTasks(app)


@app.task(name=OK, shared=False)  # type: ignore[untyped-decorator]
def succeed(*_: Any, **__: Any) -> int:
    return 1


@app.task(name=FAIL, shared=False)  # type: ignore[untyped-decorator]
def fail(text: str = "broken") -> None:
    raise ValueError(text)


@app.task(bind=True, name=AGAIN, shared=False, max_retries=2)  # type: ignore[untyped-decorator]
def again(self: Any) -> None:
    """Fail after two retries."""
    raise self.retry(countdown=0, exc=KeyError("gone"))


@app.task(name=REJECT, shared=False)  # type: ignore[untyped-decorator]
def reject() -> None:
    """Reject the message."""
    raise Reject("no", requeue=False)


@app.task(name=IGNORE, shared=False)  # type: ignore[untyped-decorator]
def ignore() -> None:
    """End without a result."""
    raise Ignore


@app.task(name=LONG, shared=False, time_limit=1)  # type: ignore[untyped-decorator]
def long() -> None:
    time.sleep(60)


@app.task(bind=True, name=DIE, shared=False, reject_on_worker_lost=False)  # type: ignore[untyped-decorator]
def die(self: Any) -> None:
    """Kill the process of the pool."""
    del self
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name=CRASH, shared=False, max_deliveries=2)  # type: ignore[untyped-decorator]
def crash() -> None:
    """Kill the process of the pool; the message comes back once."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, name=HEADERS, shared=False)  # type: ignore[untyped-decorator]
def headers(self: Any) -> None:
    """Store the headers that the task sees."""
    with connect(os.environ["STORE_URL"], check=False) as client:
        client.rpush(SEEN, repr(self.request.headers))


@app.task(name=GATE, shared=False)  # type: ignore[untyped-decorator]
def wait_for_gate(name: str) -> None:
    """Wait until a test opens the gate *name*, at most 60 s."""
    with connect(os.environ["STORE_URL"], check=False, socket_timeout=70) as client:
        client.rpush(SEEN, name)
        client.blpop([name], 60)


@app.task(name=PATIENT, shared=False)  # type: ignore[untyped-decorator]
def wait_patiently() -> str:
    """Wait 60 s; store what ends it early."""
    with connect(os.environ["STORE_URL"], check=False, socket_timeout=70) as client:
        client.rpush(SEEN, "waits")
        try:
            time.sleep(60)
        except SoftTimeLimitExceeded:
            client.rpush(SEEN, "cleaned up")
    return "ended early"


@app.task(name=HUGE, shared=False)  # type: ignore[untyped-decorator]
def fail_hugely() -> None:
    """Fail with 10 MB of text."""
    raise ValueError("\x1b[31m<b>" * 1_000_000)


@app.task(bind=True, name=MENDED, shared=False)  # type: ignore[untyped-decorator]
def fail_until_mended(self: Any, number: int) -> None:
    """Fail until the key "mended" is set; then store what the task sees."""
    with connect(os.environ["STORE_URL"], check=False) as client:
        if not client.exists("mended"):
            raise ZeroDivisionError(number)
        request = self.request
        seen = {
            "id": request.id,
            "at": time.time(),
            "number": number,
            "retries": request.retries,
            "own": (request.headers or {}).get("own"),
            "group": request.group,
            "root": request.root_id,
            "parent": request.parent_id,
            "priority": request.delivery_info["priority"],
            "argsrepr": request.argsrepr,
        }
        client.rpush(SEEN, json.dumps(seen))


@app.task(name=CANVAS, shared=False)  # type: ignore[untyped-decorator]
def call_others() -> None:
    """Send a chord of two tasks and a callback, and a chain that stops."""
    chord([succeed.si(), succeed.si()], app=app)(succeed.si())
    (succeed.si() | fail.si() | succeed.si()).apply_async()


if os.environ.get("LATER") == "1":

    @app.task(bind=True, name=LATER, shared=False)  # type: ignore[untyped-decorator]
    def run_later(self: Any) -> None:
        """Store the id."""
        with connect(os.environ["STORE_URL"], check=False) as client:
            client.rpush(SEEN, self.request.id)
