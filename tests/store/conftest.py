"""A stage with both queues on the shared server, and users with few permissions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from tests.support.acl import set_user
from tests.support.servers import RedisServer, client_options
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
    clients: list[redis.Redis] = []

    def make(rules: str) -> redis.Redis:
        set_user(client, "limited", rules)
        clients.append(redis.Redis.from_url(redis_server.url, username="limited", password="pw", **client_options()))
        return clients[-1]

    yield make
    for one in clients:
        one.close()
    client.execute_command("ACL", "DELUSER", "limited")
