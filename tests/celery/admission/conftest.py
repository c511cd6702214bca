"""Fixtures of tests of flows and unique tasks: a Redis of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import redis

from tests.support.servers import RedisServer


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    """A client of it."""
    with server.client() as client:
        yield client


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What ends with the test."""
    with ExitStack() as stack:
        yield stack
