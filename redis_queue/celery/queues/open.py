"""Read Celery's queues from the broker of an app, of whatever kind it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from celery import Celery
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel as RedisChannel

from redis_queue.celery.kombu.connection import add_timeouts, client_of
from redis_queue.celery.kombu.keys import InFlightKeys
from redis_queue.celery.queues.amqp import AmqpQueues, Management
from redis_queue.celery.queues.contents import InFlightMessages, QueueContents
from redis_queue.celery.queues.depth import BacklogQueues, BrokerQueues, purge_backlog, readable_backlog
from redis_queue.celery.queues.names import QueueNames
from redis_queue.celery.queues.redis import RedisQueues
from redis_queue.celery.settings import CelerySettings
from redis_queue.celery.store import Store
from redis_queue.errors import ConfigurationError
from redis_queue.store.scripts import Scripts

CONNECT_TIMEOUT: Final = 2.0
"""Seconds to wait for each reply of the broker."""

LEASE: Final = 12.0
"""Lease for which :func:`add_timeouts` chooses a timeout of two seconds."""


@contextmanager
def broker_queues(app: Celery) -> Iterator[BrokerQueues]:
    """Yield a reader of the queues of *app*'s broker. Raises OperationalError if the broker is away."""
    with connected(app) as connection:
        yield _reader(app, connection)


@contextmanager
def queue_contents(app: Celery, queue: str) -> Iterator[QueueContents]:
    """Yield the messages of *queue*, as :func:`opener` opens them."""
    with opener(app) as open_queue:
        yield open_queue(queue)


@contextmanager
def opener(app: Celery) -> Iterator[Callable[[str], QueueContents]]:
    """Yield a function that takes the name of a queue and returns its messages; all share one connection.

    Those that wait for a place in a flow are among them; of other brokers only these. It raises OperationalError,
    StoreError, and ConfigurationError if the broker is not Redis, and none waits for a place.
    """
    with connected(app) as connection:

        def open_queue(queue: str) -> QueueContents:
            backlog, redis_broker = readable_backlog(app, queue), _is_redis(connection)
            if not redis_broker and backlog is None:
                kind = connection.transport.driver_type
                raise ConfigurationError(
                    f"the broker is {kind}: must be Redis; reading messages would change their order"
                )
            return QueueContents(connection.default_channel if redis_broker else None, queue, backlog)

        yield open_queue


@contextmanager
def in_flight(app: Celery) -> Iterator[list[InFlightMessages]]:
    """Yield the messages that workers have: those of the broker, if it is Redis, and those of flows of other brokers.

    Raises OperationalError if the broker is away, and ConfigurationError.
    """
    names, store = QueueNames(app), Store.of(app)
    with connected(app) as connection:
        found = [InFlightMessages(Scripts(store.client), InFlightKeys.under(store.flow_keys.taken), names)]
        if _is_redis(connection):
            channel = connection.default_channel
            found.insert(0, InFlightMessages(Scripts(client_of(channel)), InFlightKeys.of(channel), names))
        yield found


def purge(app: Celery, queue: str, limit: int) -> Iterator[int]:
    """Delete up to *limit* messages of *queue*, also those that wait for a place; yield the number of each batch.

    On brokers other than Redis, all that the broker has are deleted, and up to *limit* that wait for a place. Raises
    OperationalError and StoreError.
    """
    # Those in the broker first: from there, they go to where they wait for a place, never back.
    with connected(app) as connection:
        if _is_redis(connection):
            for count in QueueContents(connection.default_channel, queue).purge(limit):
                limit -= count
                yield count
        else:
            yield int(connection.default_channel.queue_purge(queue) or 0)
    yield from purge_backlog(app, queue, limit)


def on_redis(app: Celery) -> bool:
    """Return whether the broker of *app* is Redis; connects to no server."""
    return _is_redis(app.connection_for_read())


@contextmanager
def connected(app: Celery) -> Iterator[Any]:
    """Yield a connection to the broker of *app* with short timeouts. Raises OperationalError if the broker is away."""
    connection = app.connection_for_read(connect_timeout=CONNECT_TIMEOUT, heartbeat=0)
    try:
        add_timeouts(connection, LEASE)
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_TIMEOUT)
        if connection.transport.driver_type == "amqp" and hasattr(connection.connection.transport, "sock"):
            connection.connection.transport.sock.settimeout(CONNECT_TIMEOUT)
        yield connection
    except OperationalError:
        raise
    except (*connection.connection_errors, *connection.channel_errors) as error:
        raise OperationalError(str(error)) from error
    finally:
        connection.release()


def _is_redis(connection: Any) -> bool:
    return issubclass(getattr(connection.transport, "Channel", object), RedisChannel)


def _reader(app: Celery, connection: Any) -> BrokerQueues:
    queues: BrokerQueues
    if connection.transport.driver_type == "amqp":
        url = CelerySettings.of(app).management_url
        queues = AmqpQueues(connection, None if url is None else Management(url, connection.virtual_host or "/"))
    elif _is_redis(connection):
        queues = RedisQueues(app, connection.default_channel)
    else:
        return BrokerQueues()
    try:
        return BacklogQueues(app, queues)
    except ConfigurationError:
        # An app without a store has no flows.
        return queues
