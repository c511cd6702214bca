"""Run a task in this process as a worker would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from celery import signals, states
from celery.app.task import Context
from celery.app.trace import build_tracer
from celery.exceptions import Reject

from redis_queue.testing.task_row import TaskRow

if TYPE_CHECKING:
    from celery import Celery

HOST: Final = "redis_queue.testing"


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One run of a task at the time *at* of the test, with its Celery *state*; *exception* if it failed."""

    id: str
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    at: datetime
    state: str
    result: Any = None
    exception: BaseException | None = field(default=None, compare=False)


def run_task(app: Celery, row: TaskRow, now: datetime) -> TaskRun:
    """Run *row* with signals, callbacks, chain and result as in a worker; an expired task is revoked.

    Exceptions of the task are not raised.
    """
    task = app.tasks[row.task]
    request = _request(row)
    if row.expires_at is not None and row.expires_at <= now:
        return _expire(task, row, request, now)
    tracer = build_tracer(task.name, task, app=app, hostname=HOST)
    try:
        result, info, _, _ = tracer(row.id, row.args, row.kwargs, request)
    except Reject as error:  # as a worker does: the message is dropped
        return _run(row, now, states.REJECTED, exception=error)
    if info is None:
        return _run(row, now, states.SUCCESS, result)
    failed = info.state == states.FAILURE
    return _run(row, now, info.state, exception=info.retval if failed else None)


def _expire(task: Any, row: TaskRow, request: dict[str, Any], now: datetime) -> TaskRun:
    context = Context(request)
    task.backend.mark_as_revoked(row.id, "expired", request=context, store_result=not task.ignore_result)
    signals.task_revoked.send(sender=task, request=context, terminated=False, signum=None, expired=True)
    return _run(row, now, states.REVOKED)


def _run(
    row: TaskRow, now: datetime, state: str, result: Any = None, exception: BaseException | None = None
) -> TaskRun:
    return TaskRun(row.id, row.task, row.args, row.kwargs, now, state, result, exception)


def _request(row: TaskRow) -> dict[str, Any]:
    envelope = row.envelope
    return {
        **row.headers,
        "id": row.id,
        "properties": dict(envelope.properties),
        "delivery_info": {
            "exchange": envelope.exchange,
            "routing_key": envelope.routing_key,
            "priority": envelope.properties.get("priority"),
            "redelivered": False,
        },
        "reply_to": envelope.properties.get("reply_to"),
        "correlation_id": envelope.properties.get("correlation_id"),
        "hostname": HOST,
        "is_eager": False,
        "args": list(row.args),
        "kwargs": dict(row.kwargs),
        **row.embed,
    }
