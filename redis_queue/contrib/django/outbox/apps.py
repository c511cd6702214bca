"""AppConfig of ``redis_queue.contrib.django.outbox``."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """The outbox table and its relay."""

    name = "redis_queue.contrib.django.outbox"
    label = "redis_queue_outbox"
    verbose_name = "Outbox of delayed tasks"
    default_auto_field = "django.db.models.BigAutoField"
