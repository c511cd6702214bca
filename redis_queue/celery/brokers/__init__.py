"""Connections that publish to each kind of broker."""

from redis_queue.celery.brokers.base import Broker, Settle, UnroutableError, reason_of
from redis_queue.celery.brokers.open import open_broker

__all__ = ["Broker", "Settle", "UnroutableError", "open_broker", "reason_of"]
