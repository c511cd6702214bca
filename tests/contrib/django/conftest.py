"""The example shop with the test's database and Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
import redis

from tests.support.django.project import served_by

# Django has had task backends, and tests of them, since 6.0: make test-django.
collect_ignore = [] if django.VERSION >= (6,) else ["test_own_suite.py"]


@pytest.fixture
def database(request: pytest.FixtureRequest, shop: Path) -> str:
    """The path or URL of the database: SQLite, or the server that is a parameter of the test."""
    server = getattr(request, "param", "sqlite")
    return str(shop if server == "sqlite" else request.getfixturevalue(server))


@pytest.fixture(scope="session")
def postgresql(shop: Path, postgres_url: str) -> str:
    """A PostgreSQL database with the tables of the shop."""
    return _migrated(postgres_url)


@pytest.fixture(scope="session")
def mariadb(shop: Path, mariadb_url: str) -> str:
    """A MariaDB or MySQL database with the tables of the shop."""
    return _migrated(mariadb_url)


def _migrated(url: str) -> str:
    from django.core.management import call_command

    with served_by(url):
        call_command("migrate", verbosity=0)
    return url


@pytest.fixture
def tables(client: redis.Redis, database: str) -> Iterator[Any]:
    """Empty the tables and Redis; return django.db.transaction."""
    from django.core.management import call_command
    from django.db import connection, transaction

    del client
    with served_by(database):
        yield transaction
        call_command("flush", "--no-input", verbosity=0)
        connection.close()


@pytest.fixture
def outbox(tables: Any) -> Any:
    from redis_queue.contrib.django import outbox

    del tables
    return outbox


@pytest.fixture
def delayed(tables: Any) -> Any:
    """The DurableTasks of the shop, without entries."""
    from examples.shop.celery import app
    from redis_queue.celery.stored_tasks import StoredTasks

    del tables
    return StoredTasks.of(app)
