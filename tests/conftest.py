"""Servers for all tests: each starts when the first test needs it and is private to this test process."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import redis.utils
from celery import Celery

from redis_queue.monitor.report import Reports
from tests.support.celery.observing import Observed, observed_on_one_redis
from tests.support.clock import Clock
from tests.support.cluster import RedisCluster
from tests.support.parts import MissingPartError
from tests.support.proxy import FaultProxy
from tests.support.redis_sockets import kept_sockets
from tests.support.sentinel import SentinelSet
from tests.support.servers import RedisServer, client_options
from tests.support.services import mariadb, mariadb_connection, postgres, rabbitmq
from tests.support.store.stage import Stage

GROUP_OF_FIXTURE = {"chromium": "browser", "cluster": "matrix", "distributions": "installs", "sentinel": "matrix"}
"""The group of the tests that use a fixture; groups run in `make test-all` only."""


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As under nohup: started processes would inherit it and could not be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# redis-py reads the metadata of its package for each connection.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add each test to the groups of its fixtures."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if group := GROUP_OF_FIXTURE.get(fixture):
                item.add_marker(group)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Skip a test when a fixture needs a missing part."""
    return (yield from _without_missing_parts())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test that needs a missing part."""
    return (yield from _without_missing_parts())


def _without_missing_parts() -> Generator[None, object, object]:
    try:
        return (yield)
    except MissingPartError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Take what exists now out of the garbage collector's sight: it would look through 8,000 tests again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def redis_sockets() -> Iterator[None]:
    """Keep the sockets of redis-py until their connections close them."""
    with kept_sockets():
        yield


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Restore the level of the root logger: a worker or a command in this process sets its own."""
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)


@pytest.fixture
def clock() -> Clock:
    """A manual clock for queues under test."""
    return Clock()


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let this machine sleep for some seconds: its monotonic clock stands, that of the time since its boot goes on."""
    slept, real = [0.0], time.clock_gettime
    monkeypatch.setattr(
        time, "clock_gettime", lambda clock: real(clock) + (clock == time.CLOCK_BOOTTIME and sum(slept))
    )
    return slept.append


@pytest.fixture
def reports(client: redis.Redis, clock: Clock) -> Reports:
    """Write reports of workers by the manual clock."""
    return Reports(client, "redis_queue", clock)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The shared server, on a unix socket.

    A test that kills, freezes or reconfigures a server starts a `RedisServer` of its own; that takes milliseconds.
    """
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture(scope="session")
def shop(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SQLite database of the example shop, migrated, in this process."""
    from tests.support.django.project import configure  # the settings are read with it

    return configure(redis_server.url, tmp_path_factory.mktemp("shop"))


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client of the shared server, emptied before the test; no retries."""
    with redis_server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def stage(client: redis.Redis) -> Stage:
    """A RedisQueue and a DelayQueue, both named "orders", with entries in every state."""
    return Stage(client)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of the test: it may be killed, filled and reconfigured."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def app(redis_server: RedisServer, client: redis.Redis) -> Iterator[Celery]:
    """An app whose broker, result backend and store are the shared server."""
    url = f"redis+socket://{redis_server.socket}"
    with Celery("tests", broker=url, backend=url, set_as_current=False) as app:
        yield app


@pytest.fixture
def observed(request: pytest.FixtureRequest) -> Iterator[Observed]:
    """Broker and store of observed workers in one server; if its module has `RESULTS`, it keeps results, too."""
    with observed_on_one_redis(results=getattr(request.module, "RESULTS", False)) as observed:
        yield observed


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """A pool for blocking calls."""
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    """A proxy in front of the shared server."""
    with FaultProxy(redis_server.address) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: FaultProxy) -> Iterator[redis.Redis]:
    """A client that connects through the proxy, with a short socket timeout."""
    with redis.Redis.from_url(proxy.url, **client_options(socket_timeout=2.0)) as through:
        yield through


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry calls without a pause: with hundreds of broken calls the pauses are most of the time."""
    monkeypatch.setattr("redis_queue.store.scripts.random", SimpleNamespace(uniform=lambda _low, _high: 0.0))


@pytest.fixture(scope="session")
def redis_tcp_server() -> Iterator[RedisServer]:
    """A second shared server, on a TCP port."""
    with RedisServer(tcp=True) as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisCluster]:
    """The shared cluster, in the state left by the last test."""
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture
def cluster_client(cluster: RedisCluster) -> Iterator[redis.RedisCluster]:
    """A client of the shared cluster, healed and emptied before the test: a test may kill its primaries."""
    cluster.heal()
    cluster.flush()
    with cluster.client() as client:
        yield client


@pytest.fixture(scope="session")
def sentinel() -> Iterator[SentinelSet]:
    """The shared Sentinel set, in the state left by the last test."""
    with SentinelSet() as sentinel:
        yield sentinel


@pytest.fixture
def sentinel_client(sentinel: SentinelSet) -> Iterator[redis.Redis]:
    """A client of the primary of the shared Sentinel set, healed and emptied before the test: a test may kill it."""
    sentinel.heal()
    sentinel.flush()
    with sentinel.client() as client:
        yield client


@pytest.fixture(scope="session")
def rabbitmq_url() -> Iterator[str]:
    with rabbitmq() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of an empty database on a running PostgreSQL, dropped afterwards."""
    import psycopg  # only these tests need it

    name = f"redis_queue_test_{uuid4().hex}"
    with postgres() as url, psycopg.connect(url, autocommit=True, connect_timeout=3) as server:
        server.execute(f"CREATE DATABASE {name}")
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    """The URL of an empty database on a running MariaDB or MySQL, dropped afterwards."""
    name = f"redis_queue_test_{uuid4().hex}"
    with mariadb() as url, mariadb_connection(url) as server, server.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
        cursor.execute(f"DROP DATABASE {name}")
