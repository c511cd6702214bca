"""push_task: store a call of a task in a DelayQueue, without DelayedTasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from redis_queue.basics.times import Seconds
from redis_queue.celery.message.entry import TaskCall
from redis_queue.celery.message.headers import CALL, new_call
from redis_queue.celery.tracing import scheduling_call
from redis_queue.delay.model import OnConflict, Push
from redis_queue.delay.queue import DelayQueue
from redis_queue.store.ids import new_ids


def push_task(
    delay_queue: DelayQueue,
    /,
    task: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    delay: Seconds | None = None,
    due_at: datetime | None = None,
    id: str | None = None,
    on_conflict: OnConflict = "replace",
    **options: Any,
) -> str:
    """Store a call of *task* (a Celery task, its name or a signature) in *delay_queue* until it is due; return its id.

    *id* becomes the task id; a call that waits under it is replaced. *options* are those of ``apply_async``, such as
    ``queue=`` and ``priority=``; they, *delay*, *due_at* and *id* have precedence over those of a signature. Arguments
    may be of any type that Celery can write as JSON. Raises BodyError for other types, InvalidValueError for a chain,
    group or chord, and what :meth:`redis_queue.DelayQueue.push` raises.
    """
    call, own = TaskCall.of(task, args, kwargs, options)
    id = own.get("task_id") if id is None else id  # noqa: A001 - the name of the argument
    if delay is None and due_at is None:
        delay, due_at = own.get("countdown"), own.get("eta")
    app = getattr(task, "app", None)
    if app is not None:
        call = call.routed(app)
    name = new_ids(1)[0] if id is None else id
    with scheduling_call(call, name, delay, due_at) as traced:
        payload, mark = traced.payload(app), new_call()
        item = Push(payload, delay, due_at, name, headers={CALL: mark}, mark=mark)
        return delay_queue.push_many([item], on_conflict=on_conflict)[0]
