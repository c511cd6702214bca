"""Durable delays and a reliable queue on Redis."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from redis_queue.admission.rules import Flow, Unique
    from redis_queue.delay.queue import DelayQueue
    from redis_queue.errors import (
        BodyError,
        ConfigurationError,
        Dead,
        DuplicateTaskError,
        EntryExistsError,
        InvalidDelayError,
        InvalidNameError,
        InvalidValueError,
        LeaseLostError,
        LockTakenError,
        Nack,
        QueueFullError,
        RedisQueueError,
        SchemaError,
        StoreError,
        StoreRefusedError,
        StoreUnavailableError,
        UnsupportedServerError,
        WorkerRefusedError,
        WrongTypeError,
    )
    from redis_queue.lock.lock import HeldLock, Lock, current_lock
    from redis_queue.lock.serialized import serialized
    from redis_queue.model import (
        CancelOutcome,
        DeadLetter,
        DelayStats,
        Entry,
        Lease,
        Message,
        PutBack,
        Quarantined,
        QueueStats,
        Unread,
    )
    from redis_queue.queue.consumer import Consumer
    from redis_queue.queue.queue import RedisQueue
    from redis_queue.store.connection import connect
    from redis_queue.store.settings import Settings

__all__ = [
    "BodyError",
    "CancelOutcome",
    "ConfigurationError",
    "Consumer",
    "Dead",
    "DeadLetter",
    "DelayQueue",
    "DelayStats",
    "DuplicateTaskError",
    "Entry",
    "EntryExistsError",
    "Flow",
    "HeldLock",
    "InvalidDelayError",
    "InvalidNameError",
    "InvalidValueError",
    "Lease",
    "LeaseLostError",
    "Lock",
    "LockTakenError",
    "Message",
    "Nack",
    "PutBack",
    "Quarantined",
    "QueueFullError",
    "QueueStats",
    "RedisQueue",
    "RedisQueueError",
    "SchemaError",
    "Settings",
    "StoreError",
    "StoreRefusedError",
    "StoreUnavailableError",
    "Unique",
    "Unread",
    "UnsupportedServerError",
    "WorkerRefusedError",
    "WrongTypeError",
    "connect",
    "current_lock",
    "serialized",
]

# For its plugin, pytest imports this package in every run of every project that has it installed. So the modules, and
# redis-py with them, are imported on first use.
_MODULES: Final = {
    "connect": "store.connection",
    "Consumer": "queue.consumer",
    "DelayQueue": "delay.queue",
    **dict.fromkeys(("Flow", "Unique"), "admission.rules"),
    **dict.fromkeys(("HeldLock", "Lock", "current_lock"), "lock.lock"),
    **dict.fromkeys(("Dead", "Nack"), "errors"),
    "RedisQueue": "queue.queue",
    "Settings": "store.settings",
    "serialized": "lock.serialized",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name, "errors" if name.endswith("Error") else "model")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return value
