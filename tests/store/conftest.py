"""The stage on the shared server, and a way to that server which can be broken."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import redis

from tests.store.stage import KEPT, Stage, drain_of_a_copy
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer, client_options


@pytest.fixture
def stage(client: redis.Redis) -> Stage:
    """Both queues, filled."""
    stage = Stage(client)
    assert sorted(drain_of_a_copy(client)) == KEPT
    return stage


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    """A proxy in front of the shared server."""
    with FaultProxy(redis_server.address) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: FaultProxy) -> Iterator[redis.Redis]:
    """A client behind the proxy that gives up soon."""
    with redis.Redis.from_url(proxy.url, **client_options(socket_timeout=2.0)) as through:
        yield through


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a call be repeated at once: with hundreds of broken calls the moments in between are most of the time."""
    monkeypatch.setattr("redis_queue.store.scripts.random", SimpleNamespace(uniform=lambda _low, _high: 0.0))
