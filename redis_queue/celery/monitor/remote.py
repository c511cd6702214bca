"""Remote: calls of the remote control commands of one worker, by Celery's own control messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kombu.exceptions import OperationalError

from redis_queue.basics.logs import hide_secrets
from redis_queue.errors import WorkerRefusedError

STOP: Final = "redis_queue_stop"
SHUT_DOWN: Final = "redis_queue_shut_down"
RESIZE: Final = "redis_queue_resize"

MAX_TASKS: Final = 100
"""Maximum number of tasks that one call stops."""

MAX_SIZE: Final = 1000
"""Maximum size of a pool."""

ANSWER_WITHIN: Final = 2.0
"""Seconds to wait for the reply of a worker."""

MAX_TEXT: Final = 200
"""Maximum characters of a reply that are shown."""


def stop(app: Any, worker: str, tasks: Sequence[tuple[str, int]], *, soft: bool) -> frozenset[str]:
    """Stop up to :data:`MAX_TASKS` runs, each an id and its reported start in ms; return the ids of those that ran.

    Raises WorkerRefusedError.
    """
    found = _call(app, worker, STOP, {"tasks": [list(task) for task in tasks[:MAX_TASKS]], "soft": soft})
    named = {id_ for id_, _ in tasks}
    return (
        frozenset(id_ for id_ in found if isinstance(id_, str) and id_ in named)
        if isinstance(found, list)
        else frozenset()
    )


def shut_down(app: Any, worker: str, pid: int) -> None:
    """Let the worker end its running tasks and then itself. Raises WorkerRefusedError."""
    _call(app, worker, SHUT_DOWN, {"pid": pid})


def resize(app: Any, worker: str, pid: int, size: int) -> None:
    """Change the number of tasks that run at once. Raises WorkerRefusedError."""
    _call(app, worker, RESIZE, {"pid": pid, "size": size})


def _call(app: Any, worker: str, name: str, arguments: Mapping[str, Any]) -> Any:
    try:
        replies = app.control.broadcast(
            name, arguments=arguments, destination=[worker], reply=True, timeout=ANSWER_WITHIN, limit=1
        )
    except OperationalError as error:
        raise WorkerRefusedError(f"the broker cannot be reached: {hide_secrets(str(error))}") from error
    for reply in replies or ():
        found = reply.get(worker) if isinstance(reply, Mapping) else None
        if isinstance(found, Mapping) and "ok" in found:
            return found["ok"]
        if isinstance(found, Mapping):
            raise WorkerRefusedError(f"{worker}: {_reason(str(found.get('error')))}")
    raise WorkerRefusedError(
        f"{worker}: no answer within {ANSWER_WITHIN:g} s. It may hang and act later, or its remote control is off"
        " (worker_enable_remote_control)"
    )


def _reason(error: str) -> str:
    if error.startswith("KeyError('redis_queue_"):
        return "its version of redis_queue lacks this command: upgrade it"
    return error[:MAX_TEXT]
