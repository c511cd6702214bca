"""An app whose tasks are delayed in Redis, for a client and for a real worker.

The worker reads its settings as JSON from the variable CANVAS_SETTINGS.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery, Task

from redis_queue.celery import DurableTasks
from redis_queue.celery.message.headers import CALL

VARIABLE = "CANVAS_SETTINGS"


class TooSoonError(Exception):
    """Raised until the task has been tried often enough."""


def add(_: Task, x: float, y: float) -> float:
    return x + y


def total(_: Task, numbers: list[float]) -> float:
    return sum(numbers)


def tell(self: Task, *_: Any) -> dict[str, Any]:
    """Return how this task was called."""
    request = self.request
    return {
        "ran": time.time(),
        "eta": request.eta,
        "stored": CALL in vars(request),
        "shadow": request.shadow,
        "stamps": request.stamps,
        "tenant": (request.headers or {}).get("tenant"),
        "parent": request.parent_id,
        "root": request.root_id,
    }


def retry(self: Task, times: int, countdown: float) -> list[Any]:
    if self.request.retries < times:
        raise self.retry(countdown=countdown)
    return [self.request.retries, self.request.id, CALL in vars(self.request)]


def autoretry(self: Task, times: int) -> int:
    if self.request.retries < times:
        raise TooSoonError
    return int(self.request.retries)


def fail(_: Task) -> None:
    raise ValueError("on purpose")


def append(_: Task, value: Any, path: str) -> None:
    with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123 - appending
        file.write(f"{value}\n")


def send(self: Task, countdown: float) -> str:
    return str(self.app.tasks["canvas.tell"].apply_async(countdown=countdown).id)


def make(settings: dict[str, Any]) -> Celery:
    app = Celery("canvas", set_as_current=False)
    app.conf.update(settings)
    DurableTasks(app, leases=False)
    for function in (add, total, tell, retry, fail, append, send):
        app.task(function, name=f"canvas.{function.__name__}", shared=False, bind=True)
    backoff = {"autoretry_for": (TooSoonError,), "retry_backoff": 1, "retry_jitter": False}
    app.task(autoretry, name="canvas.autoretry", shared=False, bind=True, **backoff)
    return app


if VARIABLE in os.environ:
    app = make(json.loads(os.environ[VARIABLE]))
