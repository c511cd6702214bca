"""A server for the programs of pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import RedisServer


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server with a port: URLs of Celery cannot name the socket as pages write them."""
    with RedisServer(tcp=True) as server:
        yield server
