"""Remote control commands of workers that also cancel, list and find stored tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from celery.worker.control import Panel

from redis_queue.basics.logs import logger_of
from redis_queue.basics.waits import Background
from redis_queue.celery.control.cancels import CANCELLED, CANCELS, as_collection, store_of, task_ids
from redis_queue.celery.control.revokes import discard_tasks, has_newer_call
from redis_queue.celery.dispatch.loop import lists_stored_tasks
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.celery.results import clear_revoked
from redis_queue.celery.stored_tasks import StoredTasks, delayed_of
from redis_queue.errors import RedisQueueError

logger = logger_of(__name__)

PAGE: Final = 100
"""Stored tasks in one reply of ``inspect scheduled``, unless the caller asks for another number."""

CLEARED: Final = 100
"""Maximum number of tasks of one revoke whose states each worker checks."""


_background: Final = Background()
os.register_at_fork(after_in_child=_background.forget)


def wrap_panel() -> None:
    """Extend the remote control commands of this process to stored tasks; no-op if already done."""
    for name, wrapper in _COMMANDS.items():
        original = Panel.data[name]
        if not getattr(original, "stored_too", False):
            wrapped = wrapper(original)
            wrapped.stored_too = True
            Panel.data[name] = wrapped
            for alias in [key for key, value in Panel.data.items() if value is original]:
                Panel.data[alias] = wrapped


def _cancel_too(name: str) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        def command(state: Any, *args: Any, **kwargs: Any) -> Any:
            stored = delayed_of(state.app)
            cancelled = kwargs.pop(CANCELLED, None)
            if stored is None:
                return original(state, *args, **kwargs)
            arguments = _arguments(name, args, kwargs)
            # In the background: a slow store must not block the worker.
            if cancelled != store_of(stored):
                _background.run(lambda: _try_call(lambda: CANCELS[name](stored, arguments)))
                discard_tasks(task_ids(arguments.get("task_id")))
            elif "task_id" in kwargs:
                # A newer call may have been stored before this broadcast arrived.
                older = [id_ for id_ in as_collection(kwargs["task_id"]) if not has_newer_call(state.app, str(id_))]
                kwargs = {**kwargs, "task_id": older}
                discard_tasks(task_ids(older))
                _background.run(lambda: _try_call(lambda: _clear(stored, arguments)))
            return original(state, *args, **kwargs)

        return command

    return wrap


def _clear(stored: StoredTasks, arguments: Mapping[str, Any]) -> None:
    """Clear the state REVOKED that Celery has just set, for ids under which a newer call waits."""
    for id_ in task_ids(arguments["task_id"])[:CLEARED]:
        if stored.get(id_) is not None:
            clear_revoked(stored.app, id_)


def _arguments(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    if name == "revoke_by_stamped_headers":
        return {"headers": kwargs.get("headers") or (args[0] if args else {})}
    return {"task_id": kwargs.get("task_id") or (args[-1] if args else ())}


def _scheduled(original: Any) -> Any:
    def scheduled(state: Any, limit: int = PAGE, after: str | None = None, **kwargs: Any) -> Any:
        """List delayed tasks: those in the worker's memory, and a page of those stored."""
        rows = original(state, **kwargs)
        stored = delayed_of(state.app)
        # The leader lists stored tasks, or each worker if none leads.
        if stored is None or not _try_call(lambda: lists_stored_tasks(state.app, stored.queue)):
            return rows
        page = _try_call(lambda: stored.queue.list(after=after, limit=max(1, min(int(limit), 500))))
        return [*rows, *(_row(TaskEntry.of(entry)) for entry in page or ())]

    return scheduled


def _query_task(original: Any) -> Any:
    def query_task(state: Any, ids: Any, **kwargs: Any) -> Any:
        """Find tasks by id, stored ones too."""
        found = original(state, ids, **kwargs)
        stored = delayed_of(state.app)
        missing = [id_ for id_ in task_ids(ids) if id_ not in found]
        if stored is None:
            return found
        entries = _try_call(lambda: [stored.get(id_) for id_ in missing]) or ()
        return {**found, **{entry.id: ("scheduled", _row(entry)["request"]) for entry in entries if entry}}

    return query_task


def _row(entry: TaskEntry) -> dict[str, Any]:
    due = entry.due_at.isoformat()
    return {
        "eta": due,
        "priority": entry.priority,
        "request": {
            "id": entry.id,
            "name": entry.task,
            "args": entry.args,
            "kwargs": entry.kwargs,
            "type": entry.task,
            "hostname": None,
            "time_start": None,
            "acknowledged": False,
            "delivery_info": {
                "exchange": entry.exchange,
                "routing_key": entry.routing_key,
                "priority": entry.priority,
                "redelivered": False,
            },
            "worker_pid": None,
            "stored": True,
        },
    }


def _try_call(call: Callable[[], Any]) -> Any:
    """Run *call*; log an unavailable store or invalid arguments, so that the worker's own reply is still sent."""
    try:
        return call()
    except RedisQueueError as error:
        logger.warning("the stored tasks are unavailable: %s", error, extra={"action": "store_unavailable"})
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        logger.warning("invalid arguments for stored tasks: %s", error, extra={"action": "control_refused"})
    return None


_COMMANDS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "revoke": _cancel_too("revoke"),
    "terminate": _cancel_too("terminate"),
    "revoke_by_stamped_headers": _cancel_too("revoke_by_stamped_headers"),
    "scheduled": _scheduled,
    "query_task": _query_task,
}
