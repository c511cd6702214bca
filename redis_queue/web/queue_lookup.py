"""Queues that a request refers to."""

from __future__ import annotations

from typing import Final

from redis_queue.catalog import AnyQueue
from redis_queue.delay.queue import DelayQueue
from redis_queue.store.registry import Known
from redis_queue.store.settings import Settings
from redis_queue.web.context import context

MOST_NAMES: Final = 200
"""Most queue names in a form."""

MOST_QUEUES: Final = 200
"""Most queues that one page reads."""


def delay_queues(name: str | None) -> tuple[DelayQueue, list[str]]:
    """Return the DelayQueue *name* and the names for a form; by default that of Celery tasks, or else the first."""
    access = context().access
    names = [known.name for known in context().catalog.listing(kind="delay", limit=MOST_NAMES).known]
    if name is None and names and access.app is None and access.default_delay_queue not in names:
        name = names[0]
    if name is None and not names and access.app is None:
        # There is no queue yet: an empty page is better than an error.
        known = Settings()
        first = Known("delay", access.default_delay_queue, known.max_deliveries, known.shards)
        queue = context().catalog.open(first)
        assert isinstance(queue, DelayQueue)  # noqa: S101 - the kind says so
    else:
        queue = access.delay_queue(name)
    return queue, sorted({*names, queue.name})


def queue_of(kind: str, name: str) -> AnyQueue:
    """Return the queue *name* of *kind*; raises InvalidNameError for an unknown name."""
    inspector = context().inspector
    if kind == "queue":
        return inspector.catalog.queue(name)
    return context().access.delay_queue(name)
