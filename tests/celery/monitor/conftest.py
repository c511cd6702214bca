"""A worker with a result backend, and the access of an operator to its app."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis
from celery import Celery

from redis_queue.operate.access import Access, AppAccess
from tests.support.celery.observing import Observed
from tests.support.servers import RedisServer


@pytest.fixture
def access(observed: Observed) -> Iterator[Access]:
    """Access with an app that sends no task: a result of Celery would hold a connection beyond the test."""
    url = observed.broker_url
    with Celery("operator", broker=url, backend=url, set_as_current=False) as app:
        app.conf.redis_queue_url = observed.store.url
        yield AppAccess(app)


@pytest.fixture
def on_broker(broker: Any, client: redis.Redis, redis_server: RedisServer) -> Iterator[Observed]:
    """Observed workers with the shared store and *broker*; other test processes have queues of other names."""
    queue = f"observed-{uuid4().hex}"
    own = {"control_exchange": f"{queue}-control", "event_exchange": f"{queue}-events"}
    settings = {"task_default_queue": queue, **(own if broker.url.startswith("amqp") else {})}
    observed = Observed(redis_server, client, broker.url, settings)
    yield observed
    with observed.app.connection_for_write() as connection:
        connection.default_channel.queue_delete(queue)
        for exchange in (queue, f"{queue}-events", f"{queue}-control.pidbox", f"reply.{queue}-control.pidbox"):
            connection.default_channel.exchange_delete(exchange)
    observed.app.close()
