"""A Django project whose tasks are those of ``django.tasks``; this module is its Celery app."""

from __future__ import annotations

from celery import Celery

from redis_queue.celery import DurableTasks

app = Celery("tasked")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
DurableTasks(app)
