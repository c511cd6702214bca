"""AppConfig of ``redis_queue.contrib.django``."""

from __future__ import annotations

from django.apps import AppConfig


class RedisQueueConfig(AppConfig):
    """System checks, management command, and permissions of the dashboard."""

    name = "redis_queue.contrib.django"
    label = "redis_queue"
    verbose_name = "Delayed tasks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks."""
        from redis_queue.contrib.django import checks  # noqa: F401, PLC0415 - registers itself
