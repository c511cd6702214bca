"""The processes of an app with schedules, and the tables of django-celery-beat."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.celery.periodic import Rota, rota_on_one_redis
from tests.support.django.project import served_by

INSTALLED = {"append": "django_celery_beat"}


@pytest.fixture
def rota() -> Iterator[Rota]:
    with rota_on_one_redis() as rota:
        yield rota


@pytest.fixture(scope="session")
def beat_database(shop: Path) -> str:
    """A copy of the shop's database with the tables of django-celery-beat."""
    from django.core.management import call_command
    from django.test import modify_settings

    path = str(shop.with_name("beat.sqlite3"))
    shutil.copy(shop, path)
    with modify_settings(INSTALLED_APPS=INSTALLED), served_by(path):
        call_command("migrate", "django_celery_beat", verbosity=0)
    return path


@pytest.fixture
def beat_tables(beat_database: str) -> Iterator[Any]:
    """Reads the periodic tasks of the tables, which are emptied."""
    from django.core.management import call_command
    from django.test import modify_settings

    from redis_queue.contrib.django.periodic_tasks import periodic_tasks

    with modify_settings(INSTALLED_APPS=INSTALLED), served_by(beat_database):
        yield periodic_tasks
        call_command("flush", "--no-input", verbosity=0)
