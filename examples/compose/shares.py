"""Several Redis, each with its share of the queues, the delayed tasks and the results: one app for each of them."""

from __future__ import annotations

import os
from hashlib import blake2b

from celery import Celery

from redis_queue.celery import DurableTasks

URLS = dict(share.split("=", 1) for share in os.environ["SHARES"].split())


def make(url: str) -> Celery:
    """Return the app of the share at *url*."""
    app = Celery("shop", broker=url, backend=url, include=["examples.compose.tasks"], set_as_current=False)
    app.conf.redis_queue_task_lease = float(os.environ.get("TASK_LEASE", "60"))
    app.conf.redis_queue_flow = {"shop.print_label": {"limit": 1}}
    app.conf.redis_queue_unique = {"shop.ship": {"key": "{order}"}}
    DurableTasks(app)
    app.loader.import_default_modules()
    return app


APPS = {name: make(url) for name, url in URLS.items()}


def app_of(key: str) -> Celery:
    """Return the app of the share of *key*: always the same while the share exists, whatever shares are added."""
    return APPS[max(APPS, key=lambda name: blake2b(f"{name} {key}".encode(), digest_size=8).digest())]


if share := os.environ.get("SHARE"):  # a worker: celery -A examples.compose.shares worker
    app = APPS[share]
    app.conf.redis_queue_schedules = share == min(APPS)  # else each share would send the periodic tasks
