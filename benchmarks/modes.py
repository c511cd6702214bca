"""The three ways in which a Celery worker consumes from Redis."""

from __future__ import annotations

from typing import Any, Final

from celery import Celery

from redis_queue.celery import DurableTasks

STOCK: Final = "stock"
LEASES: Final = "leases"
FETCH: Final = "fetch"
MODES: Final = (STOCK, LEASES, FETCH)

UNOBSERVED: Final = "unobserved"
"""As FETCH, but the worker reports nothing."""

DELAYS: Final = "delays"
"""As FETCH, and workers dispatch delayed tasks."""

QUEUE: Final = "bench"


def make_app(url: str, mode: str, **options: Any) -> Celery:
    """Return an app with *mode* on the Redis at *url*; *options* are transport options."""
    app = Celery("benchmarks", broker=url.replace("unix://", "redis+socket://"), set_as_current=False)
    app.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        task_acks_late=True,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        broker_transport_options=options,
        redis_queue_url=url,
        redis_queue_atomic_fetch=mode in (FETCH, UNOBSERVED, DELAYS),
        redis_queue_monitor=mode != UNOBSERVED,
    )
    if mode != STOCK:
        DurableTasks(app, delays=mode == DELAYS)
    return app
