"""Bulk: make the messages of many signatures of one kind without Celery's work for each.

The first signature of a kind goes through Celery. Later ones differ only in id, arguments and their text, so they
reuse the rest of its message. If anything could make further differences (a signal receiver, a router function, a link,
a stamp, a time to live, a method of app or task that is not Celery's own), each signature goes through Celery. So it
does if the message made here for the first signature differs from Celery's message.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

from celery import signals
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute, Router
from celery.canvas import Signature
from celery.utils.saferepr import saferepr
from kombu.serialization import dumps, registry
from kombu.utils.uuid import uuid

from redis_queue.celery.admission.policy import FlowPolicy, UniquePolicy
from redis_queue.celery.message.envelope import Due, Envelope
from redis_queue.celery.message.headers import ETA
from redis_queue.celery.publish.capture import CAPTURED, PLAIN, WRAPPED
from redis_queue.celery.publish.send import Sends, seconds_of

if TYPE_CHECKING:
    from celery import Celery

ALIKE: Final = frozenset({"countdown", "priority", "queue", "routing_key", "exchange"})
"""Options that the signatures of a kind may have; a signature with any other option has no kind."""

_OF_KIND: Final = ALIKE - {"countdown"}
"""Options that all signatures of a kind have with the same value."""

Sent = tuple[Any, list[tuple[Envelope, Due]]]
"""The result of a signature, and its delayed messages."""


class Bulk:
    """Makes the messages of many signatures; *sends* collects those that Celery makes. Close it after use.

    Delays of up to *shortest* seconds also go through Celery: they are not stored.
    """

    def __init__(self, app: Celery, sends: Sends, shortest: float) -> None:
        self._shortest = shortest
        self._app = app
        self._sends = sends
        self._kinds: dict[Any, Envelope] = {}
        self._producer: Any = None
        self._plain = _has_no_observers(app) and _is_unchanged(app)
        self._tasks: dict[str, Any] = {}
        repr_levels = getattr(app.conf, "task_repr_maxlevels", None)
        self._levels = {} if repr_levels is None else {"maxlevels": repr_levels}
        self._no_kwargs = saferepr({}, app.amqp.kwargsrepr_maxsize, **self._levels)

    def _held(self) -> Any:
        if self._producer is None:
            self._producer = self._app.amqp.producer_pool.acquire(block=True)
        return self._producer

    def close(self) -> None:
        """Release the producer that was held for the signatures that did not go through Celery."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.release()

    def _through_celery(self, signature: Any, options: dict[str, Any]) -> Sent:
        # Celery acquires its own producer: waiting for it while holding one could deadlock.
        self.close()
        with self._sends.collect() as batch:
            result = signature.apply_async(**options)
        return result, batch

    def message(self, signature: Any, countdown: float | None) -> Sent:
        """Return the result of *signature* and its delayed messages; *countdown* is the default delay in seconds."""
        timed = signature.options.get("countdown") or signature.options.get("eta")
        options = {} if timed or countdown is None else {"countdown": countdown}
        kind = self._kind(signature)
        known = self._kinds.get(kind) if kind is not None else None
        if known is None:
            result, kept = self._through_celery(signature, options)
            if kind is not None and len(kept) == 1 and self._serves_others(kept[0][0], signature):
                self._kinds[kind] = kept[0][0]
            return result, kept
        delay = (seconds_of(timed) if timed else countdown) or 0.0
        if delay <= self._shortest:
            return self._through_celery(signature, options)
        return self._like(known, signature, delay)

    def _kind(self, signature: Any) -> Any:
        """Return the key of the kind of *signature*; None if it has no kind."""
        options = signature.options
        if not self._plain or type(signature) is not Signature or not options.keys() <= ALIKE:
            return None
        task = self._task(signature.task)
        if task is None or signature.immutable or (signature._type or signature.app.tasks.get(task.name)) is not task:
            return None
        if type(signature.args) is not tuple or "apply_async" in vars(signature):
            return None
        values = [options.get(name) for name in _OF_KIND] if options else []
        if not all(isinstance(value, str | int | None) for value in values):
            return None
        return task.name, task.ignore_result, *values

    def _task(self, name: str) -> Any:
        """Return the task *name* of the app; None if it is unknown, or if its messages are not made by Celery alone."""
        if name not in self._tasks:
            task = self._app.tasks.get(name)
            dumps_models = getattr(task, "_dump_pydantic_arguments", None) is not None
            limited = FlowPolicy.of(self._app).may_apply(name) or UniquePolicy.of(self._app).of_task(name) is not None
            own = all(_is_of_celery(getattr(task, method, None)) for method in _OF_TASK)
            self._tasks[name] = task if own and not dumps_models and not limited else None
        return self._tasks[name]

    def _serves_others(self, envelope: Envelope, signature: Any) -> bool:
        """Return whether other messages of the kind differ only in the fields that this class sets."""
        headers = envelope.headers
        return (
            registry.type_to_name.get(envelope.content_type) == "json"
            and envelope.expires_at is None
            and not headers.get("expires")
            and not any(headers.get(name) for name in ("shadow", "group", "parent_id", "stamped_headers", "stamps"))
            and self._envelope(envelope, signature, envelope.id, headers.get(ETA)) == envelope
        )

    def _envelope(self, known: Envelope, signature: Any, task_id: str, eta: str | None) -> Envelope:
        """Return the message of *signature*, modelled on *known*, a message of the same kind."""
        amqp = self._app.amqp
        args, kwargs = signature.args, dict(signature.kwargs or {})
        headers = {
            **known.headers,
            "id": task_id,
            "argsrepr": saferepr(args, amqp.argsrepr_maxsize, **self._levels),
            "kwargsrepr": saferepr(kwargs, amqp.kwargsrepr_maxsize, **self._levels) if kwargs else self._no_kwargs,
            "root_id": task_id,
            ETA: eta,
        }
        _, _, body = dumps((args, kwargs, _EMBED), serializer="json")
        properties = {**known.properties, "correlation_id": task_id}
        return known.like(body.encode(), headers, properties)

    def _like(self, known: Envelope, signature: Any, delay: float) -> Sent:
        app, task_id, task = self._app, uuid(), self._task(signature.task)
        if task.typing:
            task.__header__(*signature.args, **signature.kwargs or {})
        # In UTC: a day on which the clocks change in the app's time zone does not have 24 hours.
        eta = (datetime.now(timezone.utc) + timedelta(seconds=delay)).astimezone(app.timezone)
        envelope = self._envelope(known, signature, task_id, eta.isoformat())
        ignored = envelope.headers["ignore_result"]
        if not ignored:
            app.backend.on_task_call(self._held(), task_id)
        result = task.AsyncResult(task_id)
        result.ignored = ignored
        return result, [(envelope, (delay, None))]


_EMBED: Final = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def _has_no_observers(app: Celery) -> bool:
    """Return whether no signal, event or router needs each single message."""
    heard = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
    return not (
        any(signal.receivers for signal in heard)
        or app.conf.task_send_sent_event
        or app.current_worker_task
        or any(type(route) is not MapRoute for route in app.amqp.router.routes or ())
    )


_OF_TASK: Final = ("apply_async", "shadow_name", "_get_exec_options")


def _is_unchanged(app: Celery) -> bool:
    """Return whether Celery alone makes the messages of *app*: no part of it is wrapped or replaced."""
    amqp = app.amqp
    before = vars(amqp).get(CAPTURED)
    if before is None or type(amqp.router) is not Router:
        return False
    if any(getattr(type(amqp), name) is not getattr(AMQP, name) for name in WRAPPED):
        return False
    functions = (
        app.now,
        getattr(app.send_task, PLAIN, app.send_task),
        Signature.apply_async,
        amqp.as_task_v2,
        amqp._create_task_sender,
        amqp.router.route,
        *before,
        *(vars(amqp)[name] for name in WRAPPED),
    )
    return all(map(_is_of_celery, functions))


def _is_of_celery(function: Any) -> bool:
    # A wrapper copies name and module of its function, but has other globals; a proxy has another type.
    inner = function.__func__ if type(function) is MethodType else function
    return type(inner) is FunctionType and str(inner.__globals__.get("__name__")).startswith(_OURS)


_OURS: Final = ("celery.", "redis_queue.celery.")
"""Modules whose functions treat all messages of a kind the same."""
