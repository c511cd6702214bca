"""How messages get into each kind of broker, on connections of their own."""

from redis_queue.celery.brokers.base import Broker, Settle, UnroutableError
from redis_queue.celery.brokers.open import open_broker

__all__ = ["Broker", "Settle", "UnroutableError", "open_broker"]
