"""A stage with both queues on the shared server."""

from __future__ import annotations

import pytest
import redis

from tests.support.store.stage import KEPT, Stage, drain_of_a_copy


@pytest.fixture
def stage(client: redis.Redis) -> Stage:
    """Both queues with entries in every state."""
    stage = Stage(client)
    assert sorted(drain_of_a_copy(client)) == KEPT
    return stage
