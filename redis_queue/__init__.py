"""Durable delays and a reliable queue on Redis."""

from redis_queue.connection import connect
from redis_queue.consumer import Consumer
from redis_queue.delay import DelayQueue
from redis_queue.errors import (
    BodyError,
    ConfigurationError,
    Dead,
    EntryExistsError,
    InvalidDelayError,
    InvalidNameError,
    InvalidValueError,
    LeaseLostError,
    Nack,
    QueueFullError,
    RedisQueueError,
    SchemaError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
    UnsupportedServerError,
    WrongTypeError,
)
from redis_queue.model import DeadLetter, DelayStats, Entry, Lease, Message, PutBack, Quarantined, QueueStats
from redis_queue.queue import RedisQueue
from redis_queue.settings import Settings

__all__ = [
    "BodyError",
    "ConfigurationError",
    "Consumer",
    "Dead",
    "DeadLetter",
    "DelayQueue",
    "DelayStats",
    "Entry",
    "EntryExistsError",
    "InvalidDelayError",
    "InvalidNameError",
    "InvalidValueError",
    "Lease",
    "LeaseLostError",
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
    "UnsupportedServerError",
    "WrongTypeError",
    "connect",
]
