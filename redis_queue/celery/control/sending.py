"""Cancel stored tasks with every revoke that an app sends, and delete what waits for a place with every purge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.utils.imports import instantiate

from redis_queue.celery.control.cancels import CANCELLED, CANCELS, as_collection, store_of
from redis_queue.celery.queues.gates import purge_gate
from redis_queue.celery.stored_tasks import StoredTasks, delayed_of
from redis_queue.errors import RedisQueueError
from redis_queue.store.chunks import MANY

if TYPE_CHECKING:
    from celery import Celery


def wrap_control(delayed: StoredTasks) -> None:
    """Let every revoke that the app sends cancel stored tasks first, and then reach the workers.

    If the store is unavailable, the revoke is sent to the workers, and then the error is raised. ``purge()`` deletes
    also what waits for a place in a flow, after what is in the broker.
    """
    app = delayed.app
    if "control" in vars(app):
        _wrap(app.control, delayed)
    else:
        # Create it at its first use: that reads the configuration, which may not be complete yet.
        app.control_cls = _Control(app.control_cls)


class _Control:
    """Factory in place of the control class of an app."""

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
            # Workers that heard of these ids would discard the next calls with them, for hours.
            others = [id_ for id_ in as_collection(arguments["task_id"]) if str(id_) not in unseen]
            if not others and not kwargs.get("reply"):
                return None
            arguments = {**arguments, "task_id": others}
        return broadcast(command, {**arguments, CANCELLED: store_of(delayed)}, *args[1:], **kwargs)

    purge = control.purge

    def purging_gates(*args: Any, **kwargs: Any) -> int:
        """Delete all messages of the queues of the app; return their number."""
        count = int(purge(*args, **kwargs))
        for queue in delayed.app.amqp.queues.consume_from:
            count += sum(purge_gate(delayed.app, queue, MANY))
        return count

    control.broadcast = cancelling_broadcast
    control.purge = control.discard_all = purging_gates
