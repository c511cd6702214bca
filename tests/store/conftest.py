"""A stage with both queues on the shared server, and users with few permissions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from tests.support.acl import limited_clients
from tests.support.servers import RedisServer
from tests.support.store.stage import KEPT, Stage, drain_of_a_copy


@pytest.fixture
def stage(client: redis.Redis) -> Stage:
    """Both queues with entries in every state."""
    stage = Stage(client)
    assert sorted(drain_of_a_copy(client)) == KEPT
    return stage


@pytest.fixture
def limited(redis_server: RedisServer, client: redis.Redis) -> Iterator[Callable[[str], redis.Redis]]:
    """Create a user with the given rules and return its client."""
    with limited_clients(client, redis_server.url) as make:
        yield make
