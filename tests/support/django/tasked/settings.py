"""The settings of the project, as a test gives them in ``DJANGO_TASKED``: ``CELERY_*``, ``TASKS`` and the like."""

from __future__ import annotations

import json
import os

SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = ["redis_queue.contrib.django", "tests.support.django.tasked"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "loggers": {"django.tasks": {"level": "INFO"}, "django_tasks": {"level": "INFO"}},
}
globals().update(json.loads(os.environ["DJANGO_TASKED"]))
