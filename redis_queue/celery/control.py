"""Revoke and inspect reach what is stored: with no worker alive, and after all have been restarted."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Set
from typing import TYPE_CHECKING, Any, Final

from celery.utils.imports import instantiate
from celery.worker.control import Panel

from redis_queue.celery.aside import Aside
from redis_queue.celery.deferring import delayed_of
from redis_queue.celery.entry import TaskEntry
from redis_queue.celery.renewal import has_newer_call
from redis_queue.celery.revoked import clear_revoked
from redis_queue.errors import RedisQueueError
from redis_queue.keys import is_id
from redis_queue.logs import logger_of

if TYPE_CHECKING:
    from celery import Celery

    from redis_queue.celery.delayed import DelayedTasks

logger = logger_of(__name__)

PAGE: Final = 100
"""Stored tasks in one reply of ``inspect scheduled``, unless the caller asks for another number."""

CLEARED: Final = 100
"""Most tasks of one revoke whose states each worker checks."""

CANCELLED: Final = "stored_cancelled"
"""The argument that names the store in which who asks has cancelled by itself; its workers need not search it again."""


def wrap_control(delayed: DelayedTasks) -> None:
    """Let every revoke that this app sends cancel what is stored, before the workers hear of it.

    With the store away the workers hear of it all the same, and then the caller is told.
    """
    app = delayed.app
    if "control" in vars(app):
        _wrap(app.control, delayed)
    else:
        # Made at its first use: to make it now would read the configuration, which may not be there yet.
        app.control_cls = _Control(app.control_cls)


class _Control:
    """Stands for the control class of an app until its control is made."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def __call__(self, app: Celery) -> Any:
        control = instantiate(self._kind, app=app)
        delayed = delayed_of(app)
        if delayed is not None:
            _wrap(control, delayed)
        return control


def _wrap(control: Any, delayed: DelayedTasks) -> None:
    broadcast = control.broadcast

    def cancelling_broadcast(command: str, *args: Any, **kwargs: Any) -> Any:
        cancel = _CANCELS.get(command)
        if cancel is None:
            return broadcast(command, *args, **kwargs)
        arguments = kwargs.pop("arguments", None) or (args[0] if args else None) or {}
        try:
            unseen = cancel(delayed, arguments)
        except RedisQueueError:
            broadcast(command, arguments, *args[1:], **kwargs)
            raise
        if unseen and not arguments.get("terminate"):
            # Workers would discard the next call with the same id, for hours.
            heard = [id_ for id_ in _several(arguments["task_id"]) if str(id_) not in unseen]
            if not heard and not kwargs.get("reply"):
                return None
            arguments = {**arguments, "task_id": heard}
        return broadcast(command, {**arguments, CANCELLED: _store_of(delayed)}, *args[1:], **kwargs)

    control.broadcast = cancelling_broadcast


def wrap_panel() -> None:
    """Let the workers of this process cancel, list and find stored tasks when a foreign client asks; only once."""
    for name, wrapper in _COMMANDS.items():
        original = Panel.data[name]
        if not getattr(original, "stored_too", False):
            wrapped = wrapper(original)
            wrapped.stored_too = True
            Panel.data[name] = wrapped
            for alias in [key for key, value in Panel.data.items() if value is original]:
                Panel.data[alias] = wrapped


def _cancel_ids(delayed: DelayedTasks, arguments: Mapping[str, Any]) -> Set[str]:
    return delayed.revoke_many(_storable(arguments.get("task_id")))


def _cancel_stamped(delayed: DelayedTasks, arguments: Mapping[str, Any]) -> Set[str]:
    headers = arguments.get("headers") or {}
    if isinstance(headers, list):
        headers = dict(item.split("=", 1) for item in headers)
    for name, value in headers.items():
        delayed.cancel_matching(stamp={name: value})
    return frozenset()


_CANCELS: Final[Mapping[str, Callable[[DelayedTasks, Mapping[str, Any]], Set[str]]]] = {
    "revoke": _cancel_ids,
    "terminate": _cancel_ids,
    "revoke_by_stamped_headers": _cancel_stamped,
}


_aside: Final = Aside()
os.register_at_fork(after_in_child=_aside.forget)


def _storable(ids: Any) -> list[str]:
    """Return those of one or several *ids* under which a task can be stored; the workers hear of all."""
    return [id_ for id_ in map(str, _several(ids)) if is_id(id_)]


def _several(ids: Any) -> Collection[Any]:
    return ids if isinstance(ids, list | tuple | set | frozenset) else [] if ids is None else [ids]


def _store_of(delayed: DelayedTasks) -> str:
    return f"{delayed.settings.prefix}:{delayed.settings.delay_queue}"


def _also_cancelling(name: str) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        def command(state: Any, *args: Any, **kwargs: Any) -> Any:
            delayed = delayed_of(state.app)
            cancelled = kwargs.pop(CANCELLED, None)
            if delayed is None:
                return original(state, *args, **kwargs)
            arguments = _arguments(name, args, kwargs)
            # A slow store must not block the worker.
            if cancelled != _store_of(delayed):
                _aside.run(lambda: _quietly(lambda: _CANCELS[name](delayed, arguments)))
            elif "task_id" in kwargs:
                # A newer call may have been stored before this broadcast arrived.
                older = [id_ for id_ in _several(kwargs["task_id"]) if not has_newer_call(state.app, str(id_))]
                kwargs = {**kwargs, "task_id": older}
                _aside.run(lambda: _quietly(lambda: _clear(delayed, arguments)))
            return original(state, *args, **kwargs)

        return command

    return wrap


def _clear(delayed: DelayedTasks, arguments: Mapping[str, Any]) -> None:
    """Clear the state REVOKED that Celery has just set, for ids under which a newer call waits."""
    for id_ in _storable(arguments["task_id"])[:CLEARED]:
        if delayed.get(id_) is not None:
            clear_revoked(delayed.app, id_)


def _arguments(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    if name == "revoke_by_stamped_headers":
        return {"headers": kwargs.get("headers") or (args[0] if args else {})}
    return {"task_id": kwargs.get("task_id") or (args[-1] if args else ())}


def _scheduled(original: Any) -> Any:
    def scheduled(state: Any, limit: int = PAGE, after: str | None = None, **kwargs: Any) -> Any:
        """List delayed tasks: those in the worker's memory, and a page of those stored."""
        rows = original(state, **kwargs)
        delayed = delayed_of(state.app)
        if delayed is None or not _answers(state):
            return rows
        page = _quietly(lambda: delayed.queue.list(after=after, limit=max(1, min(int(limit), 500))))
        return [*rows, *(_row(TaskEntry.of(entry)) for entry in page or ())]

    return scheduled


def _query_task(original: Any) -> Any:
    def query_task(state: Any, ids: Any, **kwargs: Any) -> Any:
        """Find tasks by id, stored ones too."""
        found = original(state, ids, **kwargs)
        delayed = delayed_of(state.app)
        missing = [id_ for id_ in _storable(ids) if id_ not in found]
        if delayed is None:
            return found
        stored = _quietly(lambda: [delayed.get(id_) for id_ in missing]) or ()
        return {**found, **{entry.id: ("scheduled", _row(entry)["request"]) for entry in stored if entry}}

    return query_task


def _answers(state: Any) -> bool:
    """Tell whether this worker lists what is stored: the one that leads, or each if none of them does."""
    from redis_queue.celery.worker import answers  # noqa: PLC0415 - it needs this module

    return bool(_quietly(lambda: answers(state.app)))


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


def _quietly(call: Callable[[], Any]) -> Any:
    """Run *call*; neither a store that is away nor a foreign client's mistake takes the worker's own answer away."""
    try:
        return call()
    except RedisQueueError as error:
        logger.warning("stored tasks cannot be reached: %s", error, extra={"action": "store_unavailable"})
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        logger.warning("stored tasks cannot be asked for that: %s", error, extra={"action": "control_refused"})
    return None


_COMMANDS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "revoke": _also_cancelling("revoke"),
    "terminate": _also_cancelling("terminate"),
    "revoke_by_stamped_headers": _also_cancelling("revoke_by_stamped_headers"),
    "scheduled": _scheduled,
    "query_task": _query_task,
}
