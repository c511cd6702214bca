"""Suggestions: known names for the search fields of pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from redis_queue.monitor.model import Series
from redis_queue.monitor.report import OTHER
from redis_queue.operate.faults import BROKEN
from redis_queue.web.context import context
from redis_queue.web.request_args import MAX_TEXT

MOST: Final = 100
"""Most names of one field."""


def task_names() -> list[str]:
    """Return names of tasks that ran within the last 90 days, in order."""
    return _sorted(series.task for series in _series())


def queue_names(known: Iterable[str] = ()) -> list[str]:
    """Return names of queues whose tasks ran within the last 90 days, and *known* ones, in order."""
    return _sorted([*known, *(series.queue for series in _series())])


def _series() -> list[Series]:
    try:
        found = context().monitor.history.series()
    except BROKEN:
        # A page works without suggestions.
        return []
    return [series for series in found if series != OTHER]


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if 0 < len(name) <= MAX_TEXT and name.isprintable()})[:MOST]
