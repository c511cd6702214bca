"""``manage.py check``: settings that cannot be are found before a process starts. Nothing is sent to Redis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core import checks

from redis_queue.celery.delayed import ATTRIBUTE
from redis_queue.celery.store import Store
from redis_queue.contrib.django.project import CELERY_APP, celery_app
from redis_queue.errors import RedisQueueError


@checks.register("redis_queue")
def check_settings(app_configs: Any = None, **_: Any) -> Iterable[checks.CheckMessage]:
    """Yield what is wrong with ``CELERY_REDIS_QUEUE_*`` and with how the project uses Celery."""
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
                "No Celery app was made when Django started.",
                hint=f"Import it in the __init__.py of the project, or set {CELERY_APP}.",
                id="redis_queue.W001",
            )
        ]
    found: list[checks.CheckMessage] = []
    try:
        Store(app)
    except RedisQueueError as error:
        text = str(error).replace("redis_queue_", "CELERY_REDIS_QUEUE_")
        found.append(
            checks.Error(text, hint="The settings are listed in docs/delayed-tasks.md.", id="redis_queue.E002")
        )
    if ATTRIBUTE not in vars(app):
        found.append(
            checks.Warning(
                "Delayed tasks of this app wait in its workers' memory.",
                hint="Add DelayedTasks(app) behind the line that makes the Celery app.",
                id="redis_queue.W002",
            )
        )
    return found
