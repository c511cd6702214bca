"""Deferral: a message that a worker holds is stored again, unchanged, to run later."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery import bootsteps
from celery.exceptions import Ignore, Reject
from celery.utils.imports import symbol_by_name
from celery.worker.request import Request

from redis_queue.celery.message.attempt import Attempt
from redis_queue.celery.message.envelope import DEFERRED_FOR, Envelope
from redis_queue.celery.message.protocol import json_body
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.errors import RedisQueueError, StoreError
from redis_queue.logs import logger_of
from redis_queue.times import duration_ms

if TYPE_CHECKING:
    from redis_queue.lock.serialized import Serial

logger = logger_of(__name__)

MS: Final = timedelta(milliseconds=1)

SERIAL: Final = "redis_queue_serial"
"""Attribute of a serialized function that holds its options."""

DEFERS: Final = "redis_queue_defers"
"""Message property that tells a task that its worker can defer it; other workers would drop the message."""


class Deferred(Ignore):  # type: ignore[misc]
    """The lock *lock* was taken; the task runs again in *delay* seconds.

    An Ignore for Celery: no result, no callback, not counted by a chord, not retried by ``autoretry_for``.
    """

    def __init__(self, lock: str, delay: float) -> None:
        super().__init__(lock, delay)
        self.lock = lock
        self.delay = delay

    def __str__(self) -> str:
        return f"another holder has the lock {self.lock!r}; next try in {self.delay:.3f} s"


class DeferrableRequest:
    """Mixin for the request class of a serialized task, in the main process of a worker.

    The message is first stored, then acknowledged: a crash in between delivers it twice. With early acknowledgement it
    was already acknowledged when its task started.
    """

    def __init__(self, message: Any, **options: Any) -> None:
        parent: Any = super()
        parent.__init__(message, **options)
        # A property: Celery copies other names into the headers of a retry, which any worker may receive.
        self._request_dict: dict[str, Any]
        self._request_dict["properties"] = {**(message.properties or {}), DEFERS: True}

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Settle the message of a task that raised."""
        error = exc_info.exception
        error = error.exc if isinstance(error, ExceptionWithTraceback) else error
        if isinstance(error, Deferred) and (failure := _deferred(self, error)) is not None:
            exc_info, return_ok = failure, False
        parent: Any = super()
        return parent.on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)


def _deferred(request: Any, why: Deferred) -> Any:
    """Store the message of *request*; return the failure if it cannot be stored."""
    try:
        defer(StoredTasks.of(request.app), request.message, why.delay)
    except RedisQueueError as error:
        logger.error("cannot defer task %s: %s", request.id, error, extra={"action": "defer_failed"})
        return _info(Reject(str(error), requeue=True) if _comes_again(request, error) else error)
    logger.info(
        "task %s[%s] is deferred: %s", request.name, request.id, why, extra={"action": "deferred", "lock": why.lock}
    )
    request.send_event("task-retried", exception=repr(why), traceback="")
    return None


def _comes_again(request: Any, error: RedisQueueError) -> bool:
    return isinstance(error, StoreError) and not request.acknowledged


def _info(error: Exception) -> Any:
    try:
        raise error
    except type(error):
        return ExceptionInfo()


def defer(delayed: StoredTasks, message: Any, seconds: float) -> None:
    """Store *message* unchanged for *seconds*. Raises StoreError, or InvalidValueError if it cannot be stored.

    A waiting attempt of the same call is kept: it may be newer. An attempt that a dispatcher still holds is replaced:
    it may be *message* itself, and its ack would delete the new entry. Another call with the same id is kept, too: then
    *message* gets an entry of its own.
    """
    defer_envelope(delayed, Envelope.of_message(message), seconds, message.delivery_info)


def defer_envelope(delayed: StoredTasks, envelope: Envelope, seconds: float, delivery_info: Any = None) -> None:
    """Store *envelope* for *seconds*, as :func:`defer`; *delivery_info* tells whether it was redelivered."""
    attempt = Attempt.of({**(json_body(envelope) or {}), **envelope.headers}, delivery_info)
    envelope = envelope.with_call(attempt.call)
    push = delayed.writer.as_push(envelope, (seconds, None))
    push = replace(push, headers={**(push.headers or {}), DEFERRED_FOR: duration_ms(seconds)})
    if not delayed.queue.calls.keep_held(push) and not attempt.waits_in(delayed.queue.look(envelope.id)):
        delayed.writer.keep_attempt(push, envelope, attempt)


def wake(delayed: StoredTasks, id: str) -> bool:
    """Make a deferred task due at once. False: it is being sent, is gone, or was rescheduled since."""
    entry = delayed.queue.get(id)
    if entry is None or (entry.due_at - entry.put_at) / MS != entry.headers.get(DEFERRED_FOR):
        return False
    return delayed.queue.run_now(id, due_at=entry.due_at)


def serial_of(task: Any) -> Serial | None:
    """Return the options of a serialized *task*; None for other tasks."""
    return getattr(getattr(task, "run", None), SERIAL, None)


class DeferralStep(bootsteps.Step):  # type: ignore[misc]
    """Lets a worker defer its serialized tasks."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        for task in parent.app.tasks.values():
            if serial_of(task) is not None:
                task.Request = deferrable(symbol_by_name(task.Request))


def deferrable(base: type[Request]) -> type[Request]:
    """Return *base* as a class of requests that can be deferred."""
    if issubclass(base, DeferrableRequest):
        return base
    return type(f"Deferrable{base.__name__}", (DeferrableRequest, base), {})
