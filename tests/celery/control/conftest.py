"""Workers that revoke and list tasks, and their client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redis_queue.celery import DurableTasks
from tests.support.celery.fleet import Fleet, fleet_on_one_redis


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Store, broker and results in one Redis."""
    with fleet_on_one_redis() as fleet:
        yield fleet


@pytest.fixture
def delayed(fleet: Fleet) -> DurableTasks:
    """The client of the app."""
    return fleet.delayed()
