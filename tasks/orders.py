"""Delayed tasks of a shop: remind of an unpaid order, and cancel it."""

from __future__ import annotations

import json
import time
from typing import Any

from redis_queue.celery import Store
from tasks import app


def executed(prefix: str) -> str:
    """Return the Redis list with one JSON object per task that ran.

    Each holds id, task, order, due and ran; the last two in seconds since the epoch.
    """
    return f"{prefix}:orders:executed"


@app.task(bind=True, shared=False, ignore_result=True)  # type: ignore[untyped-decorator]
def remind(self: Any, order: str, due: float) -> None:
    """Remind the customer of *order*; planned for *due*."""
    _record(self.request.id, "remind", order, due)


@app.task(bind=True, shared=False, ignore_result=True)  # type: ignore[untyped-decorator]
def cancel_unpaid(self: Any, order: str, due: float) -> None:
    """Cancel *order* if it is still unpaid at *due*."""
    _record(self.request.id, "cancel_unpaid", order, due)


def _record(task_id: str, task: str, order: str, due: float) -> None:
    store = Store.of(app)
    ran = {"id": task_id, "task": task, "order": order, "due": due, "ran": time.time()}
    store.client.rpush(executed(store.prefix), json.dumps(ran))
