"""Run calls that were stored after a revoke of their task id, although workers remember the revoked id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.worker import state

from redis_queue.celery.message.attempt import call_in
from redis_queue.celery.stored_tasks import delayed_of
from redis_queue.errors import RedisQueueError
from redis_queue.logs import logger_of
from redis_queue.store.ids import is_id

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)


class RenewalStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Bootstep that checks messages with a revoked task id before the worker discards them."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        make = consumer.create_task_handler
        consumer.create_task_handler = lambda *args, **options: wrap_handler(consumer.app, make(*args, **options))


def wrap_handler(app: Celery, handle: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap *handle*: before it, forget the revoked id of each message that is newer than the revoke."""

    def on_message(message: Any) -> Any:
        headers = message.headers or {}
        task_id = headers.get("id") or (message.properties or {}).get("correlation_id")
        if isinstance(task_id, str) and task_id in state.revoked and is_newer(app, task_id, headers):
            state.revoked.discard(task_id)
        return handle(message)

    return on_message


def is_newer(app: Celery, task_id: str, headers: Mapping[str, Any]) -> bool:
    """Tell whether the call in *headers* was stored after *task_id* was revoked; asks Redis.

    False if unknown: then Celery's rule applies, and the call is discarded.
    """
    delayed, call = delayed_of(app), call_in(headers)
    if delayed is None or call is None or not is_id(task_id):
        return False
    try:
        return bool(delayed.queue.calls.is_renewed(task_id, call))
    except RedisQueueError as error:
        extra = {"action": "store_unavailable", "task_id": task_id}
        logger.warning("cannot tell whether %s is newer than its revoke: %s", task_id, error, extra=extra)
        return False


def has_newer_call(app: Celery, task_id: str) -> bool:
    """Tell whether this worker holds a call of *task_id* that is newer than its revoke."""
    request = state.requests.get(task_id)
    return request is not None and is_newer(app, task_id, request.request_dict)
