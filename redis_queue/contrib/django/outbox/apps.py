"""What Django loads for ``redis_queue.contrib.django.outbox`` in INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """The table of task calls on their way."""

    name = "redis_queue.contrib.django.outbox"
    label = "redis_queue_outbox"
    verbose_name = "Outbox of delayed tasks"
    default_auto_field = "django.db.models.BigAutoField"
