"""A task call as the payload of an entry: name, arguments and options, as plain JSON.

Arguments of the other types that kombu supports (such as UUID, datetime and Decimal) are stored in kombu's form: an
object with ``__type__`` and ``__value__``. Only the worker that runs the task converts them back.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from celery.app.amqp import AMQP
from celery.utils.saferepr import saferepr
from kombu.utils.json import dumps

from redis_queue.batches import new_ids
from redis_queue.celery.attempt import CALL, ETA, call_in, call_name, new_call
from redis_queue.celery.destinations import Destinations
from redis_queue.celery.envelope import Envelope
from redis_queue.celery.tap import Tap
from redis_queue.celery.tracing import scheduling_call, with_schedule
from redis_queue.codec import JSON
from redis_queue.delay import DelayQueue
from redis_queue.delay_model import Push
from redis_queue.delay_store import OnConflict
from redis_queue.errors import BodyError, InvalidValueError
from redis_queue.model import Entry
from redis_queue.times import Seconds

if TYPE_CHECKING:
    from celery import Celery

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
"""What ``apply_async`` takes and an entry can carry. *expires* counts from the dispatch."""


_REPRS: Final = ("argsrepr", "kwargsrepr")


@dataclass(frozen=True, slots=True)
class TaskCall:
    """Which task to run with what; raises InvalidValueError for what Celery could not send."""

    task: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or not self.task:
            raise InvalidValueError(f"task={self.task!r}: give the name of a task")
        if not isinstance(self.args, list | tuple):
            raise InvalidValueError(f"args={self.args!r}: give a list or tuple")
        for name in ("kwargs", "options"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise InvalidValueError(f"{name}={value!r}: give a mapping with string names")
        for name in self.options:
            if name in ("countdown", "eta"):
                raise InvalidValueError(f"option {name!r}: give delay= or due_at= instead, which the entry waits for")
            if name not in OPTIONS:
                near = difflib.get_close_matches(name, OPTIONS, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(OPTIONS))}"
                raise InvalidValueError(f"option {name!r} cannot be stored: {hint}")

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
        """Return the call that *payload* holds; raises InvalidValueError if it holds none."""
        if not isinstance(payload, Mapping) or not set(payload) <= {"task", "args", "kwargs", "options"}:
            raise InvalidValueError(f"payload of type {type(payload).__name__} is no task call")
        return cls(**{"task": "", **payload})


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return dict(value) if isinstance(value, Mapping) else value


def _writes_types(app: Celery | None, call: TaskCall) -> bool:
    """Tell whether workers get UUIDs and the like back as such; True unless another serializer is known."""
    if app is None:
        return True
    serializer = call.options.get("serializer") or getattr(app.tasks.get(call.task), "serializer", None)
    return bool((serializer or app.conf.task_serializer) == "json")


def envelope_of_call(app: Celery, call: TaskCall, task_id: str) -> Envelope:
    """Return the message that *call* becomes; raises what Celery raises for a call that it cannot send."""
    kept: list[Envelope] = []
    options = {**_task_options(app, call.task), **call.options}
    with app.producer_or_acquire() as producer:
        tap = Tap(app, producer, lambda envelope, *_: kept.append(envelope))
        app.send_task(
            call.task, list(call.args), dict(call.kwargs), task_id=task_id, producer=tap, add_to_parent=False, **options
        )
    envelope = kept[0]
    # Celery also copies these two options into the properties of the message.
    properties = {name: value for name, value in envelope.properties.items() if name not in _REPRS}
    return with_schedule(replace(envelope, properties=properties), call.options.get("headers"))


def envelope_of_entry(app: Celery, entry: Entry, destinations: Destinations) -> Envelope:
    """Return the message that *entry* becomes.

    Raises InvalidValueError for an unreadable entry, and for a call to a forbidden queue.
    """
    if isinstance(entry.payload, bytes):
        return Envelope.unpack(entry.payload, entry.id, entry.headers)
    call = TaskCall.from_payload(entry.payload)
    destinations.check_call(call.options)
    envelope = envelope_of_call(app, call, entry.id)
    name = call_in(entry.headers) or call_name(entry.id, entry.put_at.timestamp())
    own = {ETA: entry.due_at.isoformat(), CALL: name}
    return replace(envelope, headers={**envelope.headers, **own})


def _task_options(app: Celery, name: str) -> dict[str, Any]:
    """Return what a task of *app* was declared with: Celery before 5.7 leaves it out where a name is sent."""
    task = app.tasks.get(name)
    options = task._get_exec_options() if task is not None else {}
    return {option: value for option, value in options.items() if value is not None}


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
    """Store a call of *task* (a Celery task or its name) in *delay_queue* until it is due; return the task id.

    *id* becomes the task id: the same again replaces what waits. *options* are those of ``apply_async``, such as
    ``queue=`` and ``priority=``. Arguments may be of any type that Celery can write as JSON. Raises what
    :meth:`redis_queue.DelayQueue.push` raises.
    """
    call = TaskCall(getattr(task, "name", task), args, kwargs or {}, options)
    name = new_ids(1)[0] if id is None else id
    with scheduling_call(call, name, delay, due_at) as traced:
        payload, mark = traced.payload(getattr(task, "app", None)), new_call()
        item = Push(payload, delay, due_at, name, headers={CALL: mark}, mark=mark)
        return delay_queue.push_many([item], on_conflict=on_conflict)[0]
