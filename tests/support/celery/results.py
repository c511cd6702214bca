"""Results of Celery tasks."""

from __future__ import annotations

from typing import Any

from celery import Celery


def close_results(app: Celery) -> None:
    """End the subscriptions of *app* to results: a result collected later would connect to a dead server."""
    used: Any = app
    consumer: Any = getattr(used._backend, "result_consumer", None)
    if getattr(consumer, "_connection", None) or getattr(consumer, "_pubsub", None):
        consumer.stop()
        # A result that is collected later would subscribe again in order to unsubscribe.
        consumer._pubsub = None
