"""Classes of tasks with their own requests and strategies, as applications define them."""

from __future__ import annotations

import os
from typing import Any

from celery import Task
from celery.worker.request import Request
from celery.worker.strategy import default

from redis_queue.store.connection import connect

CALLS = "observed:calls"
"""Key of the calls that reached the request and the strategy of the application."""


def note(what: str) -> None:
    with connect(os.environ["STORE_URL"], check=False) as client:
        client.hincrby(CALLS, what, 1)


class OwnRequest(Request):  # type: ignore[misc]
    """A request that notes what it handles, and raises after it has handled a failure."""

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Note the start."""
        note("accepted")
        super().on_accepted(pid, time_accepted)

    def on_failure(self, exc_info: Any, **options: Any) -> Any:
        note("failure")
        return super().on_failure(exc_info, **options)


def own_strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Any:
    """Note each message, then handle it as Celery does."""
    handle = default(task, app, consumer, **options)

    def on_message(*args: Any, **more: Any) -> Any:
        note("message")
        return handle(*args, **more)

    return on_message


class OwnTask(Task):  # type: ignore[misc]
    """Has the class of its requests."""

    Request = OwnRequest
    Strategy = "tests.support.celery.own_tasks:own_strategy"


class NamedTask(Task):  # type: ignore[misc]
    """Has the name of the class of its requests."""

    Strategy = OwnTask.Strategy
    Request = "tests.support.celery.own_tasks:OwnRequest"
