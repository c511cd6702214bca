"""Task requests: give delayed tasks the eta of stock Celery, and remove the headers of redis_queue."""

from __future__ import annotations

from typing import Any, Final

from celery import signals

from redis_queue.celery.message.headers import ETA, OWN
from redis_queue.celery.stored_tasks import delayed_of

_MOST: Final = 64
"""Most characters of an eta; ISO 8601 needs fewer."""


def restore_requests() -> None:
    """Restore the eta in requests of delayed tasks, for apps with DelayedTasks; no-op if already installed."""
    signals.task_prerun.connect(_restore, weak=False, dispatch_uid="redis_queue_restore_request")


def _restore(task: Any, **_: Any) -> None:
    if delayed_of(task.app) is None:
        return
    request = task.request
    headers = request.headers or {}
    if OWN.isdisjoint(headers):
        return
    # A retry reads them here, even if the headers of the request were changed.
    vars(request).update({name: headers[name] for name in OWN.intersection(headers)})
    kept = {name: value for name, value in headers.items() if name not in OWN}
    # As in Celery: None if there are no headers, except with protocol 1, which lacks "lang".
    request.headers = None if not kept and "lang" in vars(request) else kept
    eta = vars(request).get(ETA)
    if not request.eta and isinstance(eta, str) and len(eta) <= _MOST:
        request.eta = eta
