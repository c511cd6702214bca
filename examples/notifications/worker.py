"""The Celery app for ``celery -A examples.notifications.worker``."""

from __future__ import annotations

from celery import Celery

from examples.notifications.app import create_app

app: Celery = create_app().extensions["celery"]
