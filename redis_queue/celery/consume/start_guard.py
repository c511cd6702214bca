"""Start guard: a worker does not start tasks that another worker has by now, or that it runs already."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from celery.concurrency import solo
from celery.worker import state

from redis_queue.basics.logs import logger_of
from redis_queue.celery.consume.channel import FetchingChannel
from redis_queue.celery.consume.gate.channel import GateChannel

logger = logger_of(__name__)

LOOK: Final = 0.2
"""Seconds between two looks at a run whose message has come again."""


class StartGuard:
    """Lets the worker of *consumer* drop a waiting task, instead of starting it, if its lease was lost.

    *is_ours* tells by the delivery tag; while the broker is away, it is not asked and tasks are started. *on_drop* is
    called after each dropped task. A fetched message with early acknowledgement is settled before its task starts, or
    when it starts in a pool that lets tasks wait. One that comes again while its task runs in this worker waits for the
    end of that run: Redis had lost what it knew of it, and a second run would break limits.
    """

    def __init__(self, consumer: Any, is_ours: Callable[[str], bool], on_drop: Callable[[], None]) -> None:
        self._consumer, self._worker = consumer, consumer.controller
        self._is_ours, self._on_drop = is_ours, on_drop
        self._process = self._worker._process_task
        # By the tag that its sender gave a message.
        self._runs: WeakValueDictionary[str, Any] = WeakValueDictionary()
        # Pools with a semaphore look it up when a process is free, the others got the original on startup.
        self._worker._process_task = self._start
        if consumer.on_task_request == self._process:
            consumer.on_task_request = self._start
        if hasattr(self._worker, "_quick_release"):
            # Later: within its call it starts the next task, and 1,000 revoked ones in a row are a RecursionError.
            self._worker._quick_release = partial(self._worker.hub.call_soon, self._worker._quick_release)

    def _start(self, request: Any) -> None:
        sent_as = getattr(request.message, "sent_as", None) or ""
        run = self._runs.get(sent_as)
        if not self._may_start(request):
            _drop(self._worker, request)
            self._on_drop()
        elif run is not request and run in state.active_requests:
            _free_process(self._worker)
            _wait_for(run, request, self._consumer)
        else:
            if sent_as:
                self._runs[sent_as] = request
            channel = request.message.channel
            if isinstance(channel, GateChannel) and not self._worker.pool.uses_semaphore:
                channel.qos.begin(request.message.delivery_tag)
            self._process(request)

    def _may_start(self, request: Any) -> bool:
        """Tell whether the lease of *request* is held; settle its message if that is to be done before it starts."""
        message = request.message
        try:
            if not self._is_ours(message.delivery_tag):
                return False
            if not request.task.acks_late and isinstance(message.channel, FetchingChannel):
                _settle(message, self._worker.pool)
        except (*self._consumer.connection_errors, *self._consumer.channel_errors):
            pass
        return True


def _settle(message: Any, pool: Any) -> None:
    qos = message.channel.qos
    if not (pool.uses_semaphore or isinstance(pool, solo.TaskPool)):
        # Its tasks wait for a thread or a greenlet, and may never get one.
        qos.settle_at_start(message.delivery_tag)
    elif pool.active:
        # A pool that is being closed takes no tasks.
        qos.settle_before_start(message.delivery_tag)


def _wait_for(run: Any, request: Any, consumer: Any) -> None:
    """Settle *request* when *run*, which runs the same message, has ended; start it if that gives the message back."""
    text = "task %s is not started a second time: this worker runs it, and Redis had lost that"
    logger.warning(text, request.id, extra={"action": "start_delayed", "task_id": request.id})
    reject, given_back = run.on_reject, False

    def rejected(log: Any, errors: Any, requeue: bool = False) -> None:
        nonlocal given_back
        given_back = given_back or requeue
        reject(log, errors, requeue)

    def look() -> None:
        if run in state.active_requests:
            consumer.timer.call_after(LOOK, look)
        elif given_back:
            consumer.on_task_request(request)
        else:
            request.acknowledge()
            state.task_ready(request)

    run.on_reject = rejected
    look()


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
    if hasattr(worker, "_quick_release"):
        worker._quick_release()
