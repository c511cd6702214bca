"""System checks for ``manage.py check``: invalid settings and missing DelayedTasks. Nothing is sent to Redis."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, Final

from celery import Celery
from django.conf import settings
from django.core import checks

from redis_queue.celery.settings import NAMESPACE, CelerySettings
from redis_queue.celery.store import Store
from redis_queue.celery.stored_tasks import ATTRIBUTE
from redis_queue.contrib.django.project import CELERY_APP, celery_app
from redis_queue.errors import RedisQueueError
from redis_queue.suggestion import nearest

_SETTING: Final = re.compile(rf"\b{NAMESPACE}(\w+)")


def _in_django(app: Celery, name: str) -> str:
    """Return the name of the setting *name* in Django's settings, with the namespace of *app*."""
    return f"{app.conf.prefix or 'CELERY_'}{NAMESPACE}{name}".upper()


def _ignored(app: Celery) -> Iterator[checks.CheckMessage]:
    """Yield warnings about Django settings that look like ours but lack the namespace of *app*."""
    known = {f"{NAMESPACE}{item.name}".upper(): item.name for item in fields(CelerySettings)}
    for name in dir(settings):
        if not name.startswith(NAMESPACE.upper()):
            continue
        near = [name, *nearest(name, known, similarity=0.8)]
        meant = next((known[one] for one in near if one in known), None)
        if meant is not None:
            text = f"The setting {name} is not read."
            yield checks.Warning(text, hint=f"Write {_in_django(app, meant)}.", id="redis_queue.W003")


@checks.register("redis_queue")
def check_settings(app_configs: Any = None, **_: Any) -> Iterable[checks.CheckMessage]:
    """Check ``CELERY_REDIS_QUEUE_*`` and the Celery app of the project."""
    del app_configs
    try:
        app = celery_app()
    except RedisQueueError as error:
        return [
            checks.Error(
                str(error), hint="Write REDIS_QUEUE = {'CELERY_APP': 'shop.celery:app'}.", id="redis_queue.E001"
            )
        ]
    if app.main in (None, "default"):
        return [
            checks.Warning(
                "The project has no Celery app.",
                hint=f"Import the app in the __init__.py of the project, or set {CELERY_APP}.",
                id="redis_queue.W001",
            )
        ]
    found: list[checks.CheckMessage] = []
    try:
        Store(app)
    except RedisQueueError as error:
        text = _SETTING.sub(lambda name: _in_django(app, name[1]), str(error))
        found.append(
            checks.Error(text, hint="The settings are listed in docs/delayed-tasks.md.", id="redis_queue.E002")
        )
    found += _ignored(app)
    if ATTRIBUTE not in vars(app):
        found.append(
            checks.Warning(
                "The Celery app has no DelayedTasks, so delayed tasks wait in the memory of workers.",
                hint="Add DelayedTasks(app) after the line that creates the Celery app.",
                id="redis_queue.W002",
            )
        )
    return found
