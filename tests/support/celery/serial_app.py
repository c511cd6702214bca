"""An app with serialized tasks, for real workers: `celery -A tests.support.celery.serial_app worker`."""

from __future__ import annotations

import json
import os
from typing import Any

from celery.signals import worker_process_init

from redis_queue import current_lock
from redis_queue.celery import serialized
from tests.support.celery.delaying_app import _store, app
from tests.support.celery.serial_names import GATHER, HOLD, LEASE, MEET, RETRY_ONCE, ROWS, WRITE, finish_key

client = _store()


@worker_process_init.connect(weak=False)  # type: ignore[untyped-decorator]
def _own_connections(**_: Any) -> None:
    client.connection_pool.reset()


def note(request: Any, what: str, **more: Any) -> None:
    """Record a step of this task in one list for all tasks, in order."""
    lock = current_lock()
    assert lock is not None
    row = {"id": request.id, "what": what, "lock": lock.lock.name, "fence": lock.fence, "lost": lock.lost}
    client.rpush(ROWS, json.dumps({**row, "retries": request.retries, "pid": os.getpid(), **more}))


@app.task(bind=True, name=WRITE, shared=False, autoretry_for=(Exception,))  # type: ignore[untyped-decorator]
@serialized(key="customer:{customer}", retry_in=1.0)
def write(self: Any, customer: str, number: int = 0) -> int:
    """Record a start and an end with a short pause between."""
    note(self.request, "start")
    client.blpop(["nothing"], timeout=0.02)
    note(self.request, "end")
    return number


@app.task(name=MEET, shared=False)  # type: ignore[untyped-decorator]
@serialized(key=lambda mine, **_: f"meet:{mine}")
def meet(mine: str, other: str) -> bool:
    """Return whether another task runs at the same time."""
    client.rpush(f"tests:met:{other}", "1")
    return client.blpop([f"tests:met:{mine}"], timeout=20) is not None


@app.task(bind=True, name=HOLD, shared=False, acks_late=True)  # type: ignore[untyped-decorator]
@serialized(key="hold:{customer}", retry_in=lambda _, later=0.2: later, lease=LEASE)
def hold(self: Any, customer: str, later: float = 0.2) -> None:
    """Hold the lock until the test calls for the end."""
    note(self.request, "start")
    while client.blpop([finish_key(self.request.id)], timeout=1) is None:
        pass
    note(self.request, "end")


@app.task(bind=True, name=RETRY_ONCE, shared=False, max_retries=1)  # type: ignore[untyped-decorator]
@serialized(key="customer:{customer}", retry_in=0.1)
def retry_once(self: Any, customer: str) -> int:
    """Retry once and return the number of retries."""
    note(self.request, "start")
    if not self.request.retries:
        raise self.retry(countdown=0.05)
    return int(self.request.retries)


@app.task(name=GATHER, shared=False)  # type: ignore[untyped-decorator]
def gather(numbers: list[int]) -> list[int]:
    """End a chord."""
    return sorted(numbers)
