"""Note the messages that a worker discards: of unregistered tasks, and unreadable ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis_queue.celery.monitor.failure_log import FailureLog
from redis_queue.monitor.model import FailureKind


def note_discards(consumer: Any, log: FailureLog) -> None:
    """Let *log* note each message that *consumer* discards, before it is settled."""
    consumer.on_unknown_task = _noted(consumer.on_unknown_task, log, "unregistered")
    consumer.on_invalid_task = _noted(consumer.on_invalid_task, log, "unreadable")
    discard, refuse = consumer.on_unknown_message, consumer.on_decode_error

    def on_unknown_message(body: Any, message: Any) -> Any:
        log.note_message("unreadable", message, "neither the headers nor the body name a task")
        return discard(body, message)

    def on_decode_error(message: Any, exc: BaseException) -> Any:
        log.note_message("unreadable", message, exc)
        return refuse(message, exc)

    consumer.on_unknown_message, consumer.on_decode_error = on_unknown_message, on_decode_error


def _noted(original: Callable[..., Any], log: FailureLog, kind: FailureKind) -> Callable[..., Any]:
    def handle(body: Any, message: Any, exc: BaseException) -> Any:
        log.note_message(kind, message, exc)
        return original(body, message, exc)

    return handle
