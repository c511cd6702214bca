"""Start guard: a worker that was stopped for long does not start tasks that another worker has by now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.concurrency import solo
from celery.worker import state

from redis_queue.celery.consume.channel import FetchingChannel
from redis_queue.celery.consume.gate.channel import GateChannel
from redis_queue.logs import logger_of

logger = logger_of(__name__)


def guard_starts(consumer: Any, is_ours: Callable[[str], bool], on_drop: Callable[[], None]) -> None:
    """Let the worker of *consumer* drop a waiting task, instead of starting it, if its lease was lost.

    *is_ours* tells by the delivery tag; while the broker is away, it is not asked and tasks are started. *on_drop* is
    called after each dropped task. A fetched message with early acknowledgement is settled before its task starts, or
    when it starts in a pool that lets tasks wait.
    """
    worker = consumer.controller
    process = worker._process_task

    def start(request: Any) -> None:
        message = request.message
        try:
            ours = is_ours(message.delivery_tag)
            if ours and not request.task.acks_late and isinstance(message.channel, FetchingChannel):
                _settle(message, worker.pool)
        except (*consumer.connection_errors, *consumer.channel_errors):
            ours = True
        if not ours:
            _drop(worker, request)
            on_drop()
        elif request.revoked():
            # Celery starts the next one within this call: 1,000 revoked ones in a row would be a RecursionError.
            _free_process(worker)
        else:
            if isinstance(message.channel, GateChannel) and not worker.pool.uses_semaphore:
                message.channel.qos.begin(message.delivery_tag)
            process(request)

    # Pools with a semaphore look it up when a process is free, the others got the original on startup.
    worker._process_task = start
    if consumer.on_task_request == process:
        consumer.on_task_request = start


def _settle(message: Any, pool: Any) -> None:
    qos = message.channel.qos
    if not (pool.uses_semaphore or isinstance(pool, solo.TaskPool)):
        # Its tasks wait for a thread or a greenlet, and may never get one.
        qos.settle_at_start(message.delivery_tag)
    elif pool.active:
        # A pool that is being closed takes no tasks.
        qos.settle_before_start(message.delivery_tag)


def _drop(worker: Any, request: Any) -> None:
    logger.warning(
        "task %s is not started: its lease was lost, another worker has it",
        request.id,
        extra={"action": "start_dropped", "task_id": request.id},
    )
    # Does not touch Redis, where the record belongs to the other worker.
    request.acknowledge()
    state.task_ready(request)
    _free_process(worker)


def _free_process(worker: Any) -> None:
    """Start the next waiting task later: it may have to be dropped, too."""
    if hasattr(worker, "_quick_release"):
        worker.hub.call_soon(worker._quick_release)
