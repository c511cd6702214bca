"""Tasks that wait in a worker are dropped after their leases were lost."""

from __future__ import annotations

from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery.exceptions import TaskRevokedError
from celery.worker import WorkController
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from redis_queue.celery.consume import start_guard as starting


class Waiting:
    """A task that waits for a slot in the pool."""

    def __init__(self, number: int, tag: str) -> None:
        self.number, self.id, self.message = number, str(number), SimpleNamespace(delivery_tag=tag, channel=None)
        self.task = SimpleNamespace(acks_late=True)

    def execute_using_pool(self, pool: list[int]) -> None:
        """Start, unless it was revoked."""
        if self.message.delivery_tag == "revoked":
            raise TaskRevokedError(self.id)
        pool.append(self.number)

    def acknowledge(self) -> None:
        """Do nothing."""


def consumer_of(worker: Any) -> Any:
    """Return the consumer of a worker whose pool has a semaphore."""
    return SimpleNamespace(
        controller=worker, on_task_request=None, connection_errors=(OSError,), channel_errors=(redis.ResponseError,)
    )


@pytest.mark.parametrize("error", [OSError("away"), redis.OutOfMemoryError("full")])
def test_tasks_start_if_their_lease_cannot_be_checked(error: Exception) -> None:
    def ask(_tag: str) -> bool:
        raise error

    started: list[int] = []
    worker = SimpleNamespace(_process_task=lambda request: started.append(request.number))
    starting.StartGuard(consumer_of(worker), ask, pytest.fail)
    worker._process_task(Waiting(7, "uncertain"))
    assert started == [7]


@pytest.mark.parametrize("kind", ["lost", "revoked"])
def test_any_number_of_tasks_that_do_not_start_can_wait_for_one_slot(kind: str) -> None:
    ready: deque[Any] = deque()
    places = LaxBoundedSemaphore(1)
    started: list[int] = []
    dropped: list[int] = []
    worker = SimpleNamespace(pool=started, _quick_release=places.release, hub=SimpleNamespace(call_soon=ready.append))
    worker._process_task = partial(WorkController._process_task, worker)
    starting.StartGuard(consumer_of(worker), lambda tag: tag != "lost", lambda: dropped.append(1))
    tags = [kind] * 2000 + ["ours"]
    for number, tag in enumerate(tags):
        places.acquire(worker._process_task, Waiting(number, tag))
    while ready:
        ready.popleft()()
    assert (started, len(dropped)) == ([2000], 2000 if kind == "lost" else 0)
