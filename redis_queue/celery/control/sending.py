"""Every revoke that an app sends also cancels stored tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.utils.imports import instantiate

from redis_queue.celery.control.cancels import CANCELLED, CANCELS, several, store_of
from redis_queue.celery.stored_tasks import StoredTasks, delayed_of
from redis_queue.errors import RedisQueueError

if TYPE_CHECKING:
    from celery import Celery


def wrap_control(delayed: StoredTasks) -> None:
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


def _wrap(control: Any, delayed: StoredTasks) -> None:
    broadcast = control.broadcast

    def cancelling_broadcast(command: str, *args: Any, **kwargs: Any) -> Any:
        cancel = CANCELS.get(command)
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
            heard = [id_ for id_ in several(arguments["task_id"]) if str(id_) not in unseen]
            if not heard and not kwargs.get("reply"):
                return None
            arguments = {**arguments, "task_id": heard}
        return broadcast(command, {**arguments, CANCELLED: store_of(delayed)}, *args[1:], **kwargs)

    control.broadcast = cancelling_broadcast
