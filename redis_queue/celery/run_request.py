"""The request of a delayed task's run: it has the eta that stock Celery would have, and none of our headers."""

from __future__ import annotations

from typing import Any, Final

from celery import signals

from redis_queue.celery.attempt import ETA, OWN
from redis_queue.celery.deferring import delayed_of

_MOST: Final = 64
"""Characters of an eta in ISO 8601, and then some."""


def restore_requests() -> None:
    """Let runs in this process see the eta of delayed tasks, in apps with DelayedTasks; once is enough."""
    signals.task_prerun.connect(_restore, weak=False, dispatch_uid="redis_queue_restore_request")


def _restore(task: Any, **_: Any) -> None:
    if delayed_of(task.app) is None:
        return
    request = task.request
    headers = request.headers or {}
    if OWN.isdisjoint(headers):
        return
    # A retry finds them here, whatever it does with the headers of its request.
    vars(request).update({name: headers[name] for name in OWN.intersection(headers)})
    kept = {name: value for name, value in headers.items() if name not in OWN}
    # As Celery has them: None where none are given, but with protocol 1, which knows no "lang".
    request.headers = None if not kept and "lang" in vars(request) else kept
    eta = vars(request).get(ETA)
    if not request.eta and isinstance(eta, str) and len(eta) <= _MOST:
        request.eta = eta
