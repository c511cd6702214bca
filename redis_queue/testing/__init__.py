"""For the tests of a Celery app: delayed tasks and a clock that the test moves.

With pytest the fixtures of :mod:`redis_queue.testing.plugin` are there by themselves; elsewhere use :class:`Timeline`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from redis_queue.testing.row import TaskRow
    from redis_queue.testing.running import TaskRun
    from redis_queue.testing.server import OwnServer
    from redis_queue.testing.timeline import Timeline

__all__ = ["OwnServer", "TaskRow", "TaskRun", "Timeline"]

# pytest imports this package for the plugin, in every run: neither Celery nor redis-py before they are needed.
_PLACES: Final = {"OwnServer": "server", "TaskRow": "row", "TaskRun": "running", "Timeline": "timeline"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    return value
