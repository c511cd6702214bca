"""Django tasks that a worker runs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from typing import Any

from celery import shared_task

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


async def count_calls() -> int:
    """Return the number of calls in the outbox, by the asynchronous ORM."""
    from redis_queue.contrib.django.outbox.models import Call

    return int(await Call.objects.acount())


count_by_django = task(count_calls)
count_by_celery = shared_task(name="count_by_celery")(count_calls)


@task
async def rest(seconds: float) -> None:
    try:
        await asyncio.sleep(seconds)
    finally:
        logging.getLogger(__name__).warning("the rest has ended")
