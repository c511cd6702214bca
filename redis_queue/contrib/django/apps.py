"""AppConfig of ``redis_queue.contrib.django``."""

from __future__ import annotations

from contextlib import suppress

from django.apps import AppConfig
from django.conf import settings
from django.utils.module_loading import import_string


class RedisQueueConfig(AppConfig):
    """System checks, management command, and permissions of the dashboard."""

    name = "redis_queue.contrib.django"
    label = "redis_queue"
    verbose_name = "Delayed tasks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks, and the hook with which workers find the tasks of ``TASKS``."""
        from redis_queue.contrib.django import checks  # noqa: F401, PLC0415 - registers itself

        # A task may name a backend only when it is enqueued. Django reports wrong names.
        for backend in getattr(settings, "TASKS", {}).values():
            with suppress(ImportError):
                import_string(backend["BACKEND"])
