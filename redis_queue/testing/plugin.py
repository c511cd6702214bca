"""The pytest plugin: a Redis for tests, and delayed tasks with a clock that the test moves.

pytest loads this module in every run, so each fixture imports what it needs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import redis

    from redis_queue.testing.server import ExternalServer, OwnServer
    from redis_queue.testing.timeline import Timeline

APP_HELP = "the Celery app of the fixture delayed_tasks, for example shop.celery:app"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the ini setting with the name of the app."""
    group = parser.getgroup("redis_queue")
    group.addoption("--redis-queue-app", default=None, help=APP_HELP)
    parser.addini("redis_queue_app", APP_HELP, default="")


@pytest.fixture(scope="session")
def redis_queue_server() -> Iterator[OwnServer | ExternalServer]:
    """A Redis for these tests only, at its ``url``.

    The database REDIS_QUEUE_TEST_URL, which must be empty unless REDIS_QUEUE_TEST_FLUSH=1; without it, a server of its
    own: redis-server or valkey-server on PATH, or the server of the extra ``embedded``. With pytest-xdist each
    worker has its own server or database.
    """
    from redis_queue.errors import RedisQueueError  # noqa: PLC0415 - costs what redis-py costs
    from redis_queue.testing.binaries import ServerNotFoundError  # noqa: PLC0415
    from redis_queue.testing.server import URL_VARIABLE, OwnServer, ServerStartError, external_server  # noqa: PLC0415

    failure = ""
    with ExitStack() as stack:
        try:
            server = external_server(os.environ.get("PYTEST_XDIST_WORKER", "")) or stack.enter_context(OwnServer())
        except ServerNotFoundError as error:
            failure = f"{error}, or set {URL_VARIABLE} to an empty database"
        except (ServerStartError, RedisQueueError) as error:
            failure = str(error)
        if failure:
            pytest.fail(f"redis_queue_server: {failure}", pytrace=False)
        yield server


@pytest.fixture
def redis_queue_redis(redis_queue_server: OwnServer | ExternalServer) -> Iterator[redis.Redis]:
    """A redis-py client of an empty database, emptied again after the test."""
    import redis  # noqa: PLC0415

    with redis.Redis.from_url(redis_queue_server.url) as client:
        client.flushdb()
        yield client
        client.flushdb()


@pytest.fixture
def redis_queue_app(request: pytest.FixtureRequest) -> Any:
    """The Celery app of :func:`delayed_tasks`: override this fixture, or name the app.

    The name is ``--redis-queue-app`` or ``redis_queue_app`` in the ini file; default: the fixture ``celery_app``.
    """
    name = request.config.getoption("--redis-queue-app") or request.config.getini("redis_queue_app")
    try:
        if not name:
            return request.getfixturevalue("celery_app")
        from redis_queue.testing.installation import find_app  # noqa: PLC0415

        return find_app(name)
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
    redis_queue_server: OwnServer | ExternalServer,
    redis_queue_redis: redis.Redis,  # noqa: ARG001 - empties the database
) -> Iterator[Timeline]:
    """The delayed tasks of the app, and the clock: a :class:`redis_queue.testing.Timeline`."""
    from redis_queue.testing.timeline import Timeline  # noqa: PLC0415

    with Timeline(redis_queue_app, redis_queue_server.url) as timeline:
        yield timeline
