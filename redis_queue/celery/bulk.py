"""Bulk: many signatures of one kind become messages without all of Celery's work for each.

The first one of a kind goes through Celery. Those after it differ only in id, arguments and what shows them, so the
rest of its message serves them all. Where anything could tell them apart (a signal's receiver, a router that is a
function, a link, a stamp, a time to live) each goes through Celery by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from celery import signals
from celery.app.routes import MapRoute
from celery.app.task import Task
from celery.canvas import Signature
from celery.utils.saferepr import saferepr
from kombu.serialization import dumps
from kombu.utils.uuid import uuid

from redis_queue.celery.arguments import seconds_of
from redis_queue.celery.attempt import ETA
from redis_queue.celery.capture import Due
from redis_queue.celery.envelope import Envelope
from redis_queue.celery.protocol import plain_body

if TYPE_CHECKING:
    from celery import Celery

ALIKE: Final = frozenset({"countdown", "priority", "queue", "routing_key", "exchange"})
"""Options that a kind may have; a signature with any other one is of no kind."""

Sent = tuple[Any, list[tuple[Envelope, Due]]]
"""The result of a signature, and what it would have delayed."""

Send = Callable[[Any, dict[str, Any]], Sent]


class Bulk:
    """Makes the messages of many signatures; *send* is the way through Celery, for those that need it.

    Delays up to *shortest* seconds go that way, too: they are not for the store.
    """

    def __init__(self, app: Celery, send: Send, shortest: float) -> None:
        self._shortest = shortest
        self._app = app
        self._send = send
        self._kinds: dict[Any, Envelope] = {}
        self._producer: Any = None
        self._plain = _nobody_listens(app)
        repr_levels = getattr(app.conf, "task_repr_maxlevels", None)
        self._levels = {} if repr_levels is None else {"maxlevels": repr_levels}

    @contextmanager
    def open(self) -> Iterator[Bulk]:
        """Hold one producer for all that do not go through Celery."""
        try:
            yield self
        finally:
            self._let_go()

    def _held(self) -> Any:
        if self._producer is None:
            self._producer = self._app.amqp.producer_pool.acquire(block=True)
        return self._producer

    def _let_go(self) -> None:
        # Celery takes a producer of its own: who holds one while he waits for another may wait for ever.
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.release()

    def _through_celery(self, signature: Any, options: dict[str, Any]) -> Sent:
        self._let_go()
        return self._send(signature, options)

    def message(self, signature: Any, countdown: float | None) -> Sent:
        """Return the result of *signature* and what it would have delayed, by *countdown* unless it says otherwise."""
        timed = signature.options.get("countdown") or signature.options.get("eta")
        options = {} if timed or countdown is None else {"countdown": countdown}
        kind = self._kind(signature)
        known = self._kinds.get(kind) if kind is not None else None
        if known is None:
            result, kept = self._through_celery(signature, options)
            if kind is not None and len(kept) == 1 and _serves_others(kept[0][0]):
                self._kinds[kind] = kept[0][0]
            return result, kept
        delay = seconds_of(timed or countdown) or 0.0
        if delay <= self._shortest:
            return self._through_celery(signature, options)
        return self._like(known, signature, delay)

    def _kind(self, signature: Any) -> Any:
        """Return what signatures of one kind have in common, or None for one that is of no kind."""
        options = signature.options
        if not self._plain or type(signature) is not Signature or not options.keys() <= ALIKE:
            return None
        task = self._app.tasks.get(signature.task)
        if task is None or type(task).apply_async is not Task.apply_async or signature.immutable:
            return None
        values = tuple(options.get(name) for name in ALIKE if name != "countdown")
        return (signature.task, values) if all(isinstance(value, str | int | None) for value in values) else None

    def _like(self, known: Envelope, signature: Any, delay: float) -> Sent:
        app, task_id = self._app, uuid()
        args, kwargs = tuple(signature.args or ()), dict(signature.kwargs or {})
        task = app.tasks[signature.task]
        if task.typing:
            task.__header__(*args, **kwargs)
        headers = {
            **known.headers,
            "id": task_id,
            "argsrepr": saferepr(args, app.amqp.argsrepr_maxsize, **self._levels),
            "kwargsrepr": saferepr(kwargs, app.amqp.kwargsrepr_maxsize, **self._levels),
            "root_id": task_id,
            ETA: (app.now() + timedelta(seconds=delay)).isoformat(),
        }
        _, _, body = dumps((args, kwargs, _EMBED), serializer="json")
        envelope = replace(
            known,
            body=body.encode(),
            headers=headers,
            properties={**known.properties, "correlation_id": task_id},
        )
        if not headers["ignore_result"]:
            app.backend.on_task_call(self._held(), task_id)
        result = task.AsyncResult(task_id)
        result.ignored = headers["ignore_result"]
        return result, [(envelope, (delay, None))]


_EMBED: Final = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def _nobody_listens(app: Celery) -> bool:
    """Tell whether nothing looks at each message by itself."""
    heard = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
    return not (
        any(signal.receivers for signal in heard)
        or app.conf.task_send_sent_event
        or app.current_worker_task
        or any(not isinstance(route, MapRoute) for route in app.amqp.router.routes or ())
    )


def _serves_others(envelope: Envelope) -> bool:
    """Tell whether a message differs from others of its kind only in what :class:`Bulk` fills in."""
    body, headers = plain_body(envelope), envelope.headers
    return (
        isinstance(body, list)
        and body[2:] == [_EMBED]
        and envelope.content_encoding == "utf-8"
        and envelope.expires_at is None
        and not headers.get("expires")
        and headers.get("root_id") == headers.get("id")
        and not any(headers.get(name) for name in ("shadow", "group", "parent_id", "stamped_headers", "stamps"))
    )
