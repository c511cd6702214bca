"""A transactional outbox: schedule tasks in the database transaction that writes their data.

``schedule`` writes a row; after the commit the relay moves it into the DelayQueue of the Celery app. A rollback removes
the call, and a crash after the commit does not lose it, unlike with ``transaction.on_commit`` alone. Add
``"redis_queue.contrib.django.outbox"`` to INSTALLED_APPS, migrate, and run ``manage.py redis_queue_relay``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from redis_queue.contrib.django.outbox.calls import cancel, schedule
    from redis_queue.contrib.django.outbox.transfer import Relayed, relay

__all__ = ["Relayed", "cancel", "relay", "schedule"]

_MODULES: Final = {"Relayed": "transfer", "relay": "transfer", "cancel": "calls", "schedule": "calls"}


def __getattr__(name: str) -> Any:
    # Lazy: Django imports this package before models can be imported.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
