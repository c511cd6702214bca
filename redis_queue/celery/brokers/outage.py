"""BrokerUnavailableError: one error for a broker that is away, whatever its transport raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kombu.exceptions import OperationalError

from redis_queue.celery.brokers import Broker, open_broker
from redis_queue.errors import RedisQueueError
from redis_queue.store.connection import Client

if TYPE_CHECKING:
    from celery import Celery


class BrokerUnavailableError(RedisQueueError, ConnectionError):
    """The broker cannot be reached or does not answer; it may or may not have taken the last messages."""


@contextmanager
def broker_of(app: Celery, store: Client) -> Iterator[Broker]:
    """Yield a connection to the broker of *app*, and close it. Raises BrokerUnavailableError if the broker is away."""
    try:
        broker = open_broker(app, store)
    except OperationalError as error:
        raise BrokerUnavailableError(f"the broker cannot be reached: {error}") from error
    try:
        with unavailable_if_away(broker):
            yield broker
    finally:
        broker.close()


@contextmanager
def unavailable_if_away(broker: Broker) -> Iterator[None]:
    """Raise BrokerUnavailableError for errors that mean that *broker* is away."""
    try:
        yield
    except RedisQueueError:
        raise
    except Exception as error:
        if broker.is_away(error):
            raise BrokerUnavailableError(f"the broker is away: {error}") from error
        raise
