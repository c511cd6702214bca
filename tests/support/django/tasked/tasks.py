"""Django tasks that a worker runs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

try:
    from django.tasks import task
except ModuleNotFoundError:
    from django_tasks import task


@task
def add(first: int, second: int = 0) -> int:
    return first + second


@task
async def add_later(first: int, second: int) -> int:
    await asyncio.sleep(0)
    return first + second


@task(takes_context=True)
def describe(context: Any, *names: str) -> dict[str, Any]:
    found = context.task_result
    return {
        "attempt": context.attempt,
        "id": found.id,
        "status": found.status,
        "queue_name": found.task.queue_name,
        "priority": found.task.priority,
        "backend": found.task.backend,
        "enqueued": found.enqueued_at is not None,
        "names": list(names),
    }


@task
def fail(text: str) -> None:
    raise KeyError(text)


@task
def leave() -> None:
    sys.exit(3)


@task
def return_object() -> object:
    return object()


@task(takes_context=True)
def die_once(context: Any) -> int:
    if context.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return int(context.attempt)


@task
def now() -> float:
    return time.time()
