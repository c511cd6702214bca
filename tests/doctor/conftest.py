"""A server without problems, with two queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.support.acl import limited_clients
from tests.support.doctor.stage import Limit, Setting, Stage, fill
from tests.support.servers import RedisServer


@pytest.fixture(scope="package")
def sound() -> Iterator[RedisServer]:
    with RedisServer(aof="everysec") as server:
        yield server


@pytest.fixture
def client(sound: RedisServer) -> Iterator[redis.Redis]:
    with sound.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def stage(client: redis.Redis) -> Stage:
    """Both queues with entries in every state."""
    return fill(client)


@pytest.fixture
def setting(client: redis.Redis) -> Iterator[Setting]:
    """Change an option of the server until the end of the test."""
    before: dict[str, Any] = {}

    def change(name: str, value: Any) -> None:
        before.setdefault(name, client.config_get(name)[name])
        client.config_set(name, value)

    yield change
    for name, value in before.items():
        client.config_set(name, value)


@pytest.fixture
def limited(sound: RedisServer, client: redis.Redis) -> Iterator[Limit]:
    """Create a user with the given rules and return its client."""
    with limited_clients(client, sound.url) as make:
        yield make
