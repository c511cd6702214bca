"""Connect to the broker of an app, of whatever kind it is; one error if it is away, whatever its transport raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from celery import Celery
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel as RedisChannel

from redis_queue.celery.brokers.amqp import AmqpBroker
from redis_queue.celery.brokers.base import Broker
from redis_queue.celery.brokers.redis import RedisBroker
from redis_queue.celery.kombu.connection import add_timeouts
from redis_queue.celery.settings import CelerySettings
from redis_queue.errors import RedisQueueError
from redis_queue.store.connection import Client


class BrokerUnavailableError(RedisQueueError, ConnectionError):
    """The broker cannot be reached or does not answer; it may or may not have taken the last messages."""


def open_broker(app: Celery, store: Client) -> Broker:
    """Return a new connection to the broker of *app*. Raises kombu's OperationalError if it cannot be reached.

    If the broker is the Redis of *store*, which keeps delayed tasks, the scripts of the store can move messages.
    """
    # AmqpBroker waits for the confirms of many messages at once, so the connection must not wait for each.
    connection = app.connection_for_write(heartbeat=0, transport_options={"confirm_publish": False})
    lease = CelerySettings.of(app).dispatch_lease_seconds
    try:
        add_timeouts(connection, lease)
        connection.ensure_connection(max_retries=1, interval_start=0)
        if connection.transport.driver_type == "amqp":
            return AmqpBroker(app, connection, lease)
        if issubclass(connection.transport.Channel, RedisChannel):
            return RedisBroker(app, connection, store)
        return Broker(app, connection)
    except OperationalError:
        connection.release()
        raise
    except Exception as error:
        connection.release()
        if isinstance(error, connection.connection_errors) and not isinstance(error, KeyError):
            raise OperationalError(str(error)) from error
        raise


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
