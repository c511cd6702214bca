"""A worker with a result backend, and the access of an operator to its app."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from redis_queue.operate.access import Access, AppAccess
from tests.support.celery.observing import Observed


@pytest.fixture
def access(observed: Observed) -> Iterator[Access]:
    """Access with an app that sends no task: a result of Celery would hold a connection beyond the test."""
    url = observed.broker_url
    with Celery("operator", broker=url, backend=url, set_as_current=False) as app:
        app.conf.redis_queue_url = observed.store.url
        yield AppAccess(app)
