"""Fixtures of tests of flows and unique tasks: a Redis of their own, and workers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from celery import Celery

from tests.support.celery.brokers import Broker
from tests.support.celery.fetching import Taker, connected
from tests.support.celery.flows import QUEUE, Fleet, url_of
from tests.support.celery.uniques import app_of, taking
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.address) as proxy:
        yield proxy


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def app(server: RedisServer) -> Iterator[Celery]:
    """An app with unique tasks of each kind."""
    with app_of(server) as app:
        yield app


@pytest.fixture
def taker(server: RedisServer) -> Iterator[Taker]:
    with taking(server) as taker:
        yield taker


@pytest.fixture
def connection(server: RedisServer) -> Iterator[Any]:
    with connected(server) as connection:
        yield connection


@pytest.fixture
def url(request: pytest.FixtureRequest, server: RedisServer) -> str:
    """The URL of the broker: the database of the store, "another database" of its Redis, or "rabbitmq".

    The `BROKER` of a module is for its tests without a parameter.
    """
    place = getattr(request, "param", getattr(request.module, "BROKER", "store"))
    if place == "rabbitmq":
        found: str = request.getfixturevalue("rabbitmq_url")
        return found
    return url_of(server) if place == "store" else f"{url_of(server)}?virtual_host=1"


@pytest.fixture
def make(url: str, server: RedisServer, client: redis.Redis, stack: ExitStack) -> Iterator[Callable[..., Fleet]]:
    """Makes a fleet whose queue has the flow given; elsewhere than in the store, the queue is its own."""
    with Broker(url) as broker:
        queue, elsewhere = QUEUE, url != url_of(server)
        if elsewhere:
            queue = broker.name("flow")
            broker.forget_later(
                f"{queue}-plain", f"control-{queue}.pidbox", f"reply.control-{queue}.pidbox", f"events-{queue}"
            )
        place = {"broker": url, "queue": queue} if elsewhere else {}
        yield lambda flow=None, flows=None, **options: Fleet(
            server, client, flows or ({f"queue:{queue}": flow} if flow else {}), stack=stack, **place, **options
        )
