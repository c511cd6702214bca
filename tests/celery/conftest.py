"""Brokers and stores for the Celery tests."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue import DelayQueue
from redis_queue.celery.kombu.internals import lacking
from tests.support.celery.brokers import Broker, ManualClock
from tests.support.celery.fleet import Fleet, fleet_on_one_redis
from tests.support.servers import RedisServer

# Older versions of kombu have no atomic fetch (test_internals covers the warning) and do not check idle connections.
NEED_FETCH = [
    *("fetch/test_fetch.py", "fetch/test_handing_on.py", "fetch/test_missing_commands.py"),
    "leases/test_silent_workers.py",
]
collect_ignore = NEED_FETCH if lacking() else []


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest, redis_server: RedisServer, client: redis.Redis) -> Iterator[Broker]:
    """A broker, once a Redis (the shared server, emptied, which is also the store) and once a RabbitMQ.

    The parameter "another redis" is another database, which the store treats as another Redis.
    """
    socket = f"redis+socket://{redis_server.socket}"
    urls = {"redis": lambda: socket, "another redis": lambda: f"{socket}?virtual_host=1"}
    with Broker(urls.get(request.param, lambda: request.getfixturevalue("rabbitmq_url"))()) as broker:
        yield broker


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still until the test moves it."""
    return ManualClock()


@pytest.fixture
def delayed(client: redis.Redis, clock: ManualClock) -> Callable[..., DelayQueue]:
    """Makes the DelayQueue "scheduled" with the manual clock."""

    def make(**settings: Any) -> DelayQueue:
        return DelayQueue("scheduled", client, clock=clock, **settings)

    return make


@pytest.fixture
def queue(delayed: Callable[..., DelayQueue]) -> DelayQueue:
    """The DelayQueue "scheduled" with the manual clock."""
    return delayed()


@pytest.fixture
def default(app: Celery) -> str:
    """The default queue of the app of a test."""
    name: str = app.conf.task_default_queue
    return name


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Store, broker and results of workers in one Redis."""
    with fleet_on_one_redis() as fleet:
        yield fleet


@pytest.fixture
def notes() -> Iterator[RedisServer]:
    """The server in which tasks record their runs."""
    with RedisServer() as notes:
        yield notes
