"""Connect to the broker of an app, of whatever kind it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel as RedisChannel

from redis_queue.celery.brokers.amqp import AmqpBroker
from redis_queue.celery.brokers.base import Broker
from redis_queue.celery.brokers.redis import RedisBroker
from redis_queue.celery.kombu.connection import add_timeouts
from redis_queue.celery.settings import CelerySettings
from redis_queue.store.connection import Client

if TYPE_CHECKING:
    from celery import Celery


def open_broker(app: Celery, store: Client) -> Broker:
    """Return a new connection to the broker of *app*. Raises kombu's OperationalError if it cannot be reached.

    If the broker is the Redis of *store*, which keeps delayed tasks, the scripts of the store can move messages.
    """
    # AmqpBroker waits for the confirms of many messages at once, so the connection must not wait for each.
    connection = app.connection_for_write(heartbeat=0, transport_options={"confirm_publish": False})
    lease = CelerySettings.of(app).lease_seconds
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
