"""Cancel stored tasks with every revoke that an app sends, and delete what waits for a place with every purge."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from functools import partial
from typing import Any, Final

from celery import Celery
from celery.utils.imports import instantiate

from redis_queue.celery.queues.depth import purge_backlog
from redis_queue.celery.stored_tasks import StoredTasks, delayed_of
from redis_queue.errors import RedisQueueError
from redis_queue.store.chunks import MANY
from redis_queue.store.ids import is_id

CANCELLED: Final = "stored_cancelled"
"""Argument of a revoke: the store in which its sender has cancelled; workers need not search that one again."""


def _cancel_ids(stored: StoredTasks, arguments: Mapping[str, Any]) -> Set[str]:
    return stored.revoke_many(task_ids(arguments.get("task_id")))


def _cancel_stamped(stored: StoredTasks, arguments: Mapping[str, Any]) -> Set[str]:
    headers = arguments.get("headers") or {}
    if isinstance(headers, list):
        headers = dict(item.split("=", 1) for item in headers)
    for name, value in headers.items():
        stored.cancel_matching(stamp={name: value})
    return frozenset()


CANCELS: Final[Mapping[str, Callable[[StoredTasks, Mapping[str, Any]], Set[str]]]] = {
    "revoke": _cancel_ids,
    "terminate": _cancel_ids,
    "revoke_by_stamped_headers": _cancel_stamped,
}


def task_ids(ids: Any) -> list[str]:
    """Return the ids, of one or several, under which a task can be stored."""
    return [id_ for id_ in map(str, as_collection(ids)) if is_id(id_)]


def as_collection(ids: Any) -> Collection[Any]:
    return ids if isinstance(ids, list | tuple | set | frozenset) else [] if ids is None else [ids]


def store_of(stored: StoredTasks) -> str:
    return f"{stored.settings.prefix}:{stored.settings.delay_queue}"


def wrap_control(stored: StoredTasks) -> None:
    """Make every revoke that the app sends cancel stored tasks first, and then reach the workers.

    If the store is unavailable, the revoke is sent to the workers, and then the error is raised. ``purge()`` deletes
    also what waits for a place in a flow, after what is in the broker.
    """
    app = stored.app
    if "control" in vars(app):
        _wrap(app.control, stored)
    else:
        # Create it at its first use: that reads the configuration, which may not be complete yet.
        app.control_cls = partial(_control, app.control_cls)


def _control(kind: Any, app: Celery) -> Any:
    """Return the control object of *app*, of the class *kind* or its name."""
    control, stored = instantiate(kind, app=app), delayed_of(app)
    if stored is not None:
        _wrap(control, stored)
    return control


def _wrap(control: Any, stored: StoredTasks) -> None:
    broadcast = control.broadcast

    def cancelling_broadcast(command: str, *args: Any, **kwargs: Any) -> Any:
        cancel = CANCELS.get(command)
        if cancel is None:
            return broadcast(command, *args, **kwargs)
        arguments = kwargs.pop("arguments", None) or (args[0] if args else None) or {}
        try:
            unseen = cancel(stored, arguments)
        except RedisQueueError:
            broadcast(command, arguments, *args[1:], **kwargs)
            raise
        if unseen and not arguments.get("terminate"):
            # Workers that heard of these ids would discard the next calls with them, for hours.
            others = [id_ for id_ in as_collection(arguments["task_id"]) if str(id_) not in unseen]
            if not others and not kwargs.get("reply"):
                return None
            arguments = {**arguments, "task_id": others}
        return broadcast(command, {**arguments, CANCELLED: store_of(stored)}, *args[1:], **kwargs)

    purge = control.purge

    def purging_backlogs(*args: Any, **kwargs: Any) -> int:
        """Delete all messages of the queues of the app; return their number."""
        count = int(purge(*args, **kwargs))
        for queue in stored.app.amqp.queues.consume_from:
            count += sum(purge_backlog(stored.app, queue, MANY))
        return count

    control.broadcast = cancelling_broadcast
    control.purge = control.discard_all = purging_backlogs
