"""Workers that revoke and list tasks, and their client."""

import pytest

from redis_queue.celery import DurableTasks
from tests.support.celery.fleet import Fleet


@pytest.fixture
def delayed(fleet: Fleet) -> DurableTasks:
    return fleet.delayed()
