"""One error for a broker that is away, whatever its transport calls that."""

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
    """The broker cannot be reached or does not answer; what became of the last messages is unknown."""


@contextmanager
def broker_of(app: Celery, store: Client) -> Iterator[Broker]:
    """Give a connection to the broker of *app* and close it; raises BrokerUnavailableError when it is or goes away."""
    try:
        broker = open_broker(app, store)
    except OperationalError as error:
        raise BrokerUnavailableError(f"the broker cannot be reached: {error}") from error
    try:
        yield broker
    except RedisQueueError:
        raise
    except Exception as error:
        if broker.is_away(error):
            raise BrokerUnavailableError(f"the broker is away: {error}") from error
        raise
    finally:
        broker.close()
