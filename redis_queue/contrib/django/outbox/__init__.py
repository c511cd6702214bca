"""A transactional outbox: a task is delayed in the same database transaction as the data that it is about.

``schedule`` writes a row; once the transaction is committed, the relay moves it into the DelayQueue of the Celery app.
What is rolled back leaves nothing behind, and a process that dies after the commit loses nothing, which
``transaction.on_commit`` alone cannot promise. Add ``"redis_queue.contrib.django.outbox"`` to INSTALLED_APPS, migrate,
and let ``manage.py redis_queue_relay`` run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from redis_queue.contrib.django.outbox.calls import cancel, schedule
    from redis_queue.contrib.django.outbox.relay_loop import Relayed, relay

__all__ = ["Relayed", "cancel", "relay", "schedule"]

_PLACES: Final = {"Relayed": "relay_loop", "relay": "relay_loop", "cancel": "calls", "schedule": "calls"}


def __getattr__(name: str) -> Any:
    # Django imports this package before there may be models.
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
