"""An app that delays its tasks, and its dispatcher."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from celery import Celery

from redis_queue.celery import Dispatcher, DurableTasks
from tests.support.celery.brokers import Broker


@pytest.fixture
def app(broker: Broker, redis_url: str) -> Celery:
    return broker.app(redis_queue_url=redis_url)


@pytest.fixture
def delayed(app: Celery) -> DurableTasks:
    return DurableTasks(app, leases=False)


@pytest.fixture
def work(app: Celery, delayed: DurableTasks) -> Iterator[Dispatcher]:
    with closing(Dispatcher(app, delayed.queue)) as dispatcher:
        yield dispatcher
