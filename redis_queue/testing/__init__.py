"""Test delayed tasks of a Celery app with a clock that the test moves.

pytest loads the fixtures of :mod:`redis_queue.testing.plugin` by itself; elsewhere use :class:`Timeline`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from redis_queue.testing.server import OwnServer
    from redis_queue.testing.tasks import TaskRow, TaskRun
    from redis_queue.testing.timeline import Timeline

__all__ = ["OwnServer", "TaskRow", "TaskRun", "Timeline"]

# pytest imports this package in every run, so Celery and redis-py are imported only when needed.
_PLACES: Final = {"OwnServer": "server", "TaskRow": "tasks", "TaskRun": "tasks", "Timeline": "timeline"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    return value
