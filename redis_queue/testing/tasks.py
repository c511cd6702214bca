"""Tasks of a test: a call that was sent, with its decoded arguments, and its run in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final

from celery import Celery, signals, states
from celery.app.task import Context
from celery.app.trace import build_tracer
from celery.exceptions import Reject
from celery.utils.time import maybe_iso8601, maybe_make_aware
from celery.worker.strategy import proto1_to_proto2
from kombu.compression import decompress
from kombu.serialization import loads, prepare_accept_content

from redis_queue.celery.message.destinations import Destinations
from redis_queue.celery.message.entry import APPLIED, envelope_of_entry
from redis_queue.celery.message.envelope import Envelope
from redis_queue.model import Entry

HOST: Final = "redis_queue.testing"


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task call and its due time. If it was sent at once, *due_at* is the time of the send."""

    id: str
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    due_at: datetime
    stored_at: datetime
    queue: str
    priority: int
    retries: int
    expires_at: datetime | None
    #: The headers of the message.
    headers: Mapping[str, Any] = field(repr=False)
    #: The rest of the body: callbacks, errbacks, chain, chord.
    embed: Mapping[str, Any] = field(repr=False)
    envelope: Envelope = field(repr=False)

    @property
    def call(self) -> str:
        """The call as Python source."""
        words = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.task}({', '.join(words)})"


def row_of_entry(app: Celery, entry: Entry, *, sends: bool = False) -> TaskRow:
    """Return the task of *entry*. Raises what a worker raises for an unreadable message.

    If the test *sends* it, the ``apply_async`` of its task makes its call, unless it did.
    """
    seen = entry if sends else replace(entry, headers={**entry.headers, APPLIED: "1"})
    envelope = envelope_of_entry(app, seen, Destinations(app))
    # As a worker does.
    accept = prepare_accept_content(app.conf.accept_content)
    return row_of(app, envelope, due_at=entry.due_at, stored_at=entry.put_at, accept=accept)


def row_of(app: Celery, envelope: Envelope, *, due_at: datetime, stored_at: datetime, accept: Iterable[str]) -> TaskRow:
    """Return the task of *envelope*; *accept*: the content types to read."""
    (args, kwargs, embed), headers = _call(envelope, accept)
    expires = headers.get("expires")
    return TaskRow(
        id=envelope.id,
        task=str(headers["task"]),
        args=tuple(args or ()),
        kwargs=dict(kwargs or {}),
        due_at=due_at,
        stored_at=stored_at,
        queue=envelope.queue,
        priority=envelope.priority,
        retries=headers.get("retries") or 0,
        expires_at=maybe_make_aware(maybe_iso8601(expires), app.timezone) if expires else None,
        headers=headers,
        embed=embed or {},
        envelope=envelope,
    )


def _call(envelope: Envelope, accept: Iterable[str]) -> tuple[Any, dict[str, Any]]:
    """Return (args, kwargs, embed) and the headers, in either version of Celery's protocol."""
    headers = dict(envelope.headers)
    method = headers.pop("compression", None)
    data = decompress(envelope.body, method) if method else envelope.body
    body = loads(data, envelope.content_type, envelope.content_encoding, accept=accept)
    if "task" in headers:
        return body, headers
    found, headers, _, _ = proto1_to_proto2(SimpleNamespace(headers=headers), body)
    return found, headers


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
