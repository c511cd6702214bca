"""What an entry holds, a captured message or a call of a task as plain JSON, and the message that it becomes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

from celery import Celery
from celery.app.amqp import AMQP
from celery.canvas import Signature
from celery.exceptions import QueueNotFound
from celery.utils.saferepr import saferepr
from kombu.utils.json import dumps

from redis_queue.basics.options import did_you_mean
from redis_queue.celery.message.apply_async import ApplyAsync, task_options
from redis_queue.celery.message.destinations import Destinations
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import CALL, CARRIED, DUE_AT, ETA, UniqueHeader, call_in, call_name
from redis_queue.celery.message.producer import InterceptingProducer
from redis_queue.errors import BodyError, InvalidValueError
from redis_queue.model import Entry, Item
from redis_queue.store.codec import JSON

OPTIONS: Final = frozenset(
    {
        "argsrepr",
        "compression",
        "exchange",
        "expires",
        "headers",
        "ignore_result",
        "kwargsrepr",
        "priority",
        "queue",
        "reply_to",
        "retry",
        "retry_policy",
        "routing_key",
        "serializer",
        "shadow",
        "soft_time_limit",
        "time_limit",
    }
)
"""Options of ``apply_async`` that an entry can hold. *expires* counts from the dispatch."""

ROUTES: Final = frozenset({"queue", "exchange", "routing_key"})
"""Options that say where a call goes."""

CANVAS: Final = frozenset({"chain", "group", "chord"})
"""Signatures of more than one call."""

APPLIED: Final = "applied"
"""Header of an entry whose call was made by the ``apply_async`` of its task."""

TIMES: Final = ("countdown", "eta")

_REPRS: Final = ("argsrepr", "kwargsrepr")

_OF_CALL: Final = frozenset({"name", "args", "kwargs", "task_id", "producer", "result_cls", "task_type"})
"""Arguments of ``send_task`` that are not options of a call."""


@dataclass(frozen=True, slots=True)
class TaskCall:
    """A call of a task; raises InvalidValueError for values that Celery cannot send."""

    task: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or not self.task:
            raise InvalidValueError(f"task={self.task!r}: must be the name of a task")
        if not isinstance(self.args, list | tuple):
            raise InvalidValueError(f"args={self.args!r}: must be a list or tuple")
        for name in ("kwargs", "options"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise InvalidValueError(f"{name}={value!r}: must be a mapping with string names")
        for name in self.options:
            if name in TIMES:
                raise InvalidValueError(f"option {name!r}: give delay= or due_at= instead, which the entry waits for")
            if name not in OPTIONS:
                raise InvalidValueError(f"option {name!r} cannot be stored: {did_you_mean(name, sorted(OPTIONS))}")

    @classmethod
    def of(
        cls, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> tuple[TaskCall, dict[str, Any]]:
        """Return the call of *task*, a Celery task, its name or a signature, as ``apply_async`` would make it.

        Also return the countdown, eta and task_id of the signature. Raises InvalidValueError for a chain, group or
        chord, which is more than one call, and for options that cannot be stored.
        """
        if not isinstance(task, Signature):
            return cls(getattr(task, "name", task), args, kwargs or {}, options), {}
        if task.subtask_type in CANVAS:
            raise InvalidValueError(
                f"task={task!r}: must be one call, got a {task.subtask_type}: send it with apply_async()"
            )
        cls(task.task, args, kwargs or {}, options)
        if not task.immutable:
            args, kwargs = (*args, *task.args), {**task.kwargs, **(kwargs or {})}
        else:
            args, kwargs = task.args, task.kwargs
        given = {**task.options, **options}
        own = {name: given.pop(name) for name in ("countdown", "eta", "task_id") if name in given}
        return cls(task.task, args, kwargs, {name: value for name, value in given.items() if value is not None}), own

    def routed(self, app: Celery) -> TaskCall:
        """Return the call with the name of the queue to which *app* sends it, as a message has it.

        Raises InvalidValueError if the app has no such queue.
        """
        options = {
            name: value for name, value in {**task_options(app, self.task), **self.options}.items() if name in ROUTES
        }
        if "exchange" in options or "routing_key" in options:
            return self
        try:
            found = app.amqp.router.route(options, self.task, list(self.args), dict(self.kwargs)).get("queue")
        except QueueNotFound as error:
            raise InvalidValueError(f"{self.task}: {error}") from error
        name = getattr(found, "name", found)
        return self if not isinstance(name, str) else replace(self, options={**self.options, "queue": name})

    def payload(self, app: Celery | None = None) -> dict[str, Any]:
        """Return the call as a JSON object.

        Raises BodyError, which names task and argument, for values that Celery's JSON serializer refuses. If *app*
        sends the task with another serializer, only plain JSON is accepted.
        """
        typed = _writes_types(app, self)
        args = [self._written(f"args[{number}]", value, typed=typed) for number, value in enumerate(self.args)]
        kwargs = {name: self._written(f"kwargs[{name!r}]", value, typed=typed) for name, value in self.kwargs.items()}
        options = {
            name: self._written(f"option {name!r}", _plain(value), typed=False) for name, value in self.options.items()
        }
        if (args, kwargs) != (list(self.args), dict(self.kwargs)):
            # Shown to people and in logs: the original values, not kombu's form of them.
            args_text = saferepr(tuple(self.args), AMQP.argsrepr_maxsize)
            kwargs_text = saferepr(dict(self.kwargs), AMQP.kwargsrepr_maxsize)
            options = {"argsrepr": args_text, "kwargsrepr": kwargs_text, **options}
        return {"task": self.task, "args": args, "kwargs": kwargs, "options": options}

    def _written(self, name: str, value: Any, *, typed: bool) -> Any:
        try:
            written = json.loads(dumps(value) if typed else json.dumps(value))
            JSON.dumps(written)
        except Exception as error:  # a value of the caller's own class may raise anything
            kind = type(value).__name__
            raise BodyError(f"{self.task}: {name} of type {kind} cannot be stored as JSON: {error}") from error
        return written

    @classmethod
    def from_payload(cls, payload: Any) -> TaskCall:
        """Return the call that *payload* holds; raises InvalidValueError for another payload."""
        if not isinstance(payload, Mapping) or not set(payload) <= {"task", "args", "kwargs", "options"}:
            raise InvalidValueError(f"payload of type {type(payload).__name__}: expected a task call")
        return cls(**{"task": "", **payload})


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return dict(value) if isinstance(value, Mapping) else value


def _writes_types(app: Celery | None, call: TaskCall) -> bool:
    """Return whether workers get UUIDs and the like back as such; True unless another serializer is known."""
    if app is None:
        return True
    serializer = call.options.get("serializer") or getattr(app.tasks.get(call.task), "serializer", None)
    return bool((serializer or app.conf.task_serializer) == "json")


Content: TypeAlias = Envelope | TaskCall
"""What an entry holds: a captured message or a call."""


def content_of(entry: Entry) -> Content:
    """Return the message or the call that *entry* holds; raises InvalidValueError for an unreadable one."""
    if isinstance(entry.payload, bytes):
        return Envelope.unpack(entry.payload, entry.id, entry.headers)
    return TaskCall.from_payload(entry.payload)


def unique_header_of(entry: Entry | Item | None) -> UniqueHeader | None:
    """Return which key the message in *entry* owns; None for none, and for an unreadable entry."""
    payload = entry.body if isinstance(entry, Item) else entry and entry.payload
    if entry is None or not isinstance(payload, bytes):
        return None
    with contextlib.suppress(InvalidValueError):
        return UniqueHeader.of(Envelope.unpack(payload, entry.id, entry.headers).headers)
    return None


def readable_contents(entries: Iterable[Entry]) -> dict[str, Content]:
    """Return what *entries* hold, by id, without the unreadable ones."""
    found: dict[str, Content] = {}
    for entry in entries:
        with contextlib.suppress(InvalidValueError):
            found[entry.id] = content_of(entry)
    return found


def applied_call(
    app: Celery, call: TaskCall, task_id: str, times: Mapping[str, Any]
) -> tuple[TaskCall | None, dict[str, Any], Any]:
    """Return the call that the ``apply_async`` of the task makes of *call*, with a countdown or eta in *times*.

    Also return its own *times*, and the result. There is no call if it sends nothing; a task that *app* does not have
    sends the call as it is. Raises InvalidValueError for options that cannot be stored, and what ``apply_async``
    raises.
    """
    given, result = ApplyAsync.of(app).call(call.task, call.args, call.kwargs, task_id, {**call.options, **times})
    if given is None:
        return None, {}, result
    known = {name: value for name, value in given.items() if value is not None}
    own: dict[str, Any] = {name: known.pop(name) for name in TIMES if name in known}
    # The options of the task are added when it is sent.
    added = task_options(app, call.task)
    if call.task in app.tasks:
        added["ignore_result"] = app.tasks[call.task].ignore_result
    options = {
        name: value
        for name, value in known.items()
        if name not in _OF_CALL and (name in call.options or name not in added or added[name] != value)
    }
    return TaskCall(known["name"], known.get("args", ()), known.get("kwargs", {}), options), own, result


def envelope_of_call(app: Celery, call: TaskCall, task_id: str, *, applied: bool = False) -> Envelope:
    """Return the message that *call* becomes; raises what Celery raises for a call that it cannot send.

    Unless it was *applied* before, the ``apply_async`` of its task makes it; raises InvalidValueError if that sends
    nothing.
    """
    kept: list[Envelope] = []

    def keep(envelope: Envelope, _: Mapping[str, Any]) -> bool:
        kept.append(envelope)
        return True

    if applied:
        own = {**task_options(app, call.task), **call.options}
        given: dict[str, Any] | None = {"name": call.task, "args": list(call.args), "kwargs": dict(call.kwargs), **own}
    else:
        given, _ = ApplyAsync.of(app).tried(call.task, call.args, call.kwargs, task_id, call.options)
    if given is None:
        raise InvalidValueError(f"{call.task}: its apply_async did not send it: another call of it may wait or run")
    with app.producer_or_acquire() as producer:
        sending = {"task_id": task_id, "producer": InterceptingProducer(app, producer, keep), "add_to_parent": False}
        app.send_task(**{**given, **sending})
    envelope = kept[0]
    # Celery also copies these two options into the properties of the message.
    properties = {name: value for name, value in envelope.properties.items() if name not in _REPRS}
    return _with_schedule(replace(envelope, properties=properties), call.options.get("headers"))


def _with_schedule(envelope: Envelope, headers: Any) -> Envelope:
    """Return *envelope* with the trace context of *headers*: sending at the dispatch may have replaced it."""
    if not isinstance(headers, Mapping) or DUE_AT not in headers:
        return envelope
    kept = {name: headers[name] for name in CARRIED if name in headers}
    return replace(envelope, headers={**envelope.headers, **kept})


def envelope_of_entry(
    app: Celery, entry: Entry, destinations: Destinations, message: Content | None = None
) -> Envelope:
    """Return the message that *entry* becomes; *message* is what it holds, if that was read already.

    Raises InvalidValueError for an unreadable entry, and for a call to a forbidden queue.
    """
    message = message or content_of(entry)
    if isinstance(message, Envelope):
        return message
    destinations.check_call(message.options)
    envelope = envelope_of_call(app, message, entry.id, applied=APPLIED in entry.headers)
    name = call_in(entry.headers) or call_name(entry.id, entry.put_at.timestamp())
    own = {ETA: entry.due_at.isoformat(), CALL: name}
    return replace(envelope, headers={**envelope.headers, **own})
