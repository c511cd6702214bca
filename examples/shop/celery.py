"""The Celery app of the shop."""

from __future__ import annotations

import os

from celery import Celery

from redis_queue.celery import DurableTasks

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["examples.shop.orders"])
DurableTasks(app)
