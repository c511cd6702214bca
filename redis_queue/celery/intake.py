"""Intake: what redis_queue does in a worker with each message, from its arrival until its task starts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from celery import bootsteps, signals
from celery.concurrency import solo
from celery.worker import state

from redis_queue.basics.logs import logger_of
from redis_queue.celery.control.revokes import RevokeStep
from redis_queue.celery.fetch.channel import FetchingChannel
from redis_queue.celery.kombu.internals import around
from redis_queue.celery.leases.poison import DeliveryLimitStep
from redis_queue.celery.leases.step import LeaseStep
from redis_queue.celery.message.headers import ETA, OWN
from redis_queue.celery.monitor.step import MonitorStep
from redis_queue.celery.store_consumer.step import StoreConsumerStep
from redis_queue.celery.stored_tasks import delayed_of, has_leases

logger = logger_of(__name__)

OnMessage = Callable[[Any], Any]

CHAIN: Final = (DeliveryLimitStep, RevokeStep, StoreConsumerStep, MonitorStep)
"""The boot steps whose *intake* gets a message before Celery does, the first one first.

1. DeliveryLimitStep: a message that killed its workers becomes a dead letter, unless its lease was lost meanwhile.
2. RevokeStep: a call that is newer than the revoke of its id is not discarded.
3. StoreConsumerStep: a message of a flow that came from the broker moves into the store, with all its headers.
4. MonitorStep: notes when the message arrived, and removes the header with the time of sending.

Later, when its task is to start, StartGuard drops it if its lease was lost, and *restore_requests* restores its eta.
"""

RUN_LOOK: Final = 0.2
"""Seconds between two looks at a run whose message has come again."""

_MAX_ETA: Final = 64
"""Maximum characters of an eta; ISO 8601 needs fewer."""


class IntakeStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Puts the parts of CHAIN that the worker has before Celery's handler of messages, and installs its StartGuard.

    Celery keeps boot steps in a set: wraps by several steps would be in another order in each process.
    """

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        # It is called when the consumer starts, after all boot steps were created.
        around(consumer, "create_task_handler", lambda make, *args: _chain(consumer, make(*args)))
        if has_leases(consumer.app):
            StartGuard(consumer)


def _chain(consumer: Any, handle: OnMessage) -> OnMessage:
    steps = {type(step): step for step in consumer.steps}
    for kind in reversed(CHAIN):
        if kind in steps:
            handle = steps[kind].intake(handle)
    return handle


class StartGuard:
    """Decides whether the worker of *consumer* may start a task, in this order:

    1. If the lease of its message was lost, the task is dropped: another worker has it. While the broker is away, the
       lease is not checked and tasks are started.
    2. If this worker still runs the same message, the task waits until that run has ended, and starts only if it gave
       the message back. A Redis that loses its last writes may deliver a message again, and a second run would break
       the limits of its flows.
    3. A fetched message with early acknowledgement is settled.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer, self._worker = consumer, consumer.controller
        self._process = self._worker._process_task
        # By the tag that its sender gave a message, and its queue: each queue of an exchange gets a copy.
        self._runs: WeakValueDictionary[tuple[str, str], Any] = WeakValueDictionary()
        # Pools with a semaphore look it up when a process is free, the others got the original on startup.
        self._worker._process_task = self._start
        if consumer.on_task_request == self._process:
            consumer.on_task_request = self._start
        if hasattr(self._worker, "_quick_release"):
            # Deferred: it starts the next task within its call; 1,000 revoked ones in a row would be a RecursionError.
            self._worker._quick_release = partial(self._worker.hub.call_soon, self._worker._quick_release)

    def _start(self, request: Any) -> None:
        leases = LeaseStep.of_worker(self._consumer)
        if not leases.may_be_ours(request.message.delivery_tag):
            _drop(request)
            leases.count("dropped")
            self._free_process()
        elif run := self._run_of(request):
            self._free_process()
            _wait_for(run, request, self._consumer)
        else:
            with suppress(*self._consumer.connection_errors, *self._consumer.channel_errors):
                _settle_early(request, self._worker.pool)
            self._process(request)

    def _run_of(self, request: Any) -> Any:
        """Return the request that this worker still runs for the same message; else None, and note that it runs now."""
        sent_as = getattr(request.message, "sent_as", None)
        if not sent_as:
            return None
        delivery = sent_as, request.message.queue
        run = self._runs.get(delivery)
        if run is not request and run in state.active_requests:
            return run
        self._runs[delivery] = request
        return None

    def _free_process(self) -> None:
        if self._worker.semaphore is not None:
            self._worker.hub.call_soon(self._worker.semaphore.release)


def _settle_early(request: Any, pool: Any) -> None:
    """Settle a message with early acknowledgement before its task starts, or when a *pool* starts it later."""
    message, channel = request.message, request.message.channel
    if isinstance(channel, FetchingChannel) and not request.task.acks_late:
        if not (pool.uses_semaphore or isinstance(pool, solo.TaskPool)):
            # Its tasks wait for a thread or a greenlet, and may never get one.
            channel.qos.settle_at_start(message.delivery_tag)
        elif pool.active:
            # A pool that is being closed takes no tasks.
            channel.qos.settle_before_start(message.delivery_tag)


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
            consumer.timer.call_after(RUN_LOOK, look)
        elif given_back:
            consumer.on_task_request(request)
        else:
            request.acknowledge()
            state.task_ready(request)

    run.on_reject = rejected
    look()


def _drop(request: Any) -> None:
    logger.warning(
        "task %s is not started: its lease was lost, another worker has it",
        request.id,
        extra={"action": "start_dropped", "task_id": request.id},
    )
    # Does not touch Redis, where the record belongs to the other worker.
    request.acknowledge()
    state.task_ready(request)


def restore_requests() -> None:
    """Restore the eta in requests of delayed tasks, for apps with DurableTasks; no-op if already installed."""
    signals.task_prerun.connect(_restore, weak=False, dispatch_uid="redis_queue_restore_request")


def _restore(task: Any, **_: Any) -> None:
    if delayed_of(task.app) is None:
        return
    request = task.request
    headers = request.headers or {}
    if OWN.isdisjoint(headers):
        return
    # A retry reads them here, even if the headers of the request were changed.
    vars(request).update({name: headers[name] for name in OWN.intersection(headers)})
    kept = {name: value for name, value in headers.items() if name not in OWN}
    # As in Celery: None if there are no headers, except with protocol 1, which lacks "lang".
    request.headers = None if not kept and "lang" in vars(request) else kept
    eta = vars(request).get(ETA)
    if not request.eta and isinstance(eta, str) and len(eta) <= _MAX_ETA:
        request.eta = eta
