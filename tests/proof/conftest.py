"""A server as scripts see it."""

from collections.abc import Iterator

import pytest
import redis

from tests.support.servers import RedisServer


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client whose replies have no types beyond those of scripts."""
    with redis_server.client(protocol=2) as client:
        yield client
