"""DeliveryLimit: a task that kills worker after worker, or whose result can never be stored, is not run again."""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import socket
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from billiard.einfo import ExceptionInfo
from celery import Celery, bootsteps, signals
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.utils.dispatch import Signal
from celery.worker import state
from celery.worker.request import Request
from celery.worker.state import requests as held_requests

from redis_queue.basics.logs import OutageLog, logger_of
from redis_queue.basics.times import END_OF_CALENDAR_MS
from redis_queue.celery.kombu.internals import around
from redis_queue.celery.leases.step import LeaseStep
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import Attempt, counted_id, is_redelivered
from redis_queue.celery.settings import part_of
from redis_queue.celery.store import Store
from redis_queue.celery.stored_tasks import has_leases
from redis_queue.delay.model import Push
from redis_queue.errors import RedisQueueError
from redis_queue.store.codec import read_document
from redis_queue.store.ids import sibling_id
from redis_queue.store.keys import PrefixKeys
from redis_queue.store.redis_errors import RedisErrors

logger = logger_of(__name__)

REMEMBER: Final = 7 * 86400
"""Seconds for which the starts of an unfinished task are kept."""

MAX_HOST: Final = 255
"""Maximum characters of a host name, as in DNS."""

SPARE_WITHIN: Final = 2.0
"""Maximum seconds for which a worker that was told to stop waits for Redis before it goes on to stop."""

BILLIARD_EXIT: Final = 256
"""A process of billiard exits with the number of the signal that ends it, less this."""

task_poisoned: Final = Signal(name="task_poisoned", providing_args={"task_id", "deliveries", "exception"})
"""Sent by a worker that makes a task a dead letter; the sender is the task. ``task_failure`` is sent as well."""


class MaxDeliveriesExceededError(Exception):
    """Each start of the task killed its worker, or ended without a stored result; it is a dead letter now."""


def is_own_exit(error: SystemExit) -> bool:
    """Return whether a task's own code raised *error*: not Celery or billiard, whose process was told to stop."""
    of_signal = isinstance(error.code, int) and error.code + BILLIARD_EXIT in range(1, signal.NSIG)
    return not of_signal and not isinstance(error, (WorkerShutdown, WorkerTerminate))


def exit_failure(error: SystemExit) -> RuntimeError:
    """Return the error with which a task fails whose own code raised *error*."""
    return RuntimeError(f"the task called sys.exit({error.code!r})")


def fail_by_exits(app: Celery) -> None:
    """Let the tasks that *app* has fail when their own code calls ``sys.exit()``; no-op for those that do.

    Else Celery takes it for a worker that was killed, and they would run again. Not those with early acknowledgement,
    nor with a ``max_deliveries`` of their own.
    """
    for task in app.tasks.values():
        if not hasattr(task.run, "redis_queue_exits"):
            task.run = _failing_by_exit(task, task.run)


def _failing_by_exit(task: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except SystemExit as error:
            # Whoever calls the task as a function may wait for the error itself.
            traced = any(not request.called_directly for request in task.request_stack.stack)
            if not traced or not task.acks_late or getattr(task, "max_deliveries", None) or not is_own_exit(error):
                raise
            raise exit_failure(error) from error

    call.redis_queue_exits = True  # type: ignore[attr-defined]
    return call


class DeliveryLimit:
    """Counts in Redis how often a redelivered task was started and not finished.

    Only redelivered tasks are counted, so others cost nothing; and only started ones, so a task that waited in a killed
    worker is not punished for another task. The first delivery counts as a start only after a second start: every limit
    allows at least two starts. A worker that was told to stop is no evidence against the tasks that it runs, however it
    ends: their starts do not count.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        # Delivery tags of tasks whose last start is no longer counted.
        self._spared: set[str] = set()
        self._outage = OutageLog(
            logger, "cannot count starts of tasks", "starts of tasks are counted again", action="deliveries_unknown"
        )

    @classmethod
    def of(cls, app: Celery) -> DeliveryLimit:
        """Return the limit of *app*, created at the first call."""
        return part_of(app, cls, "delivery_limit")

    def starts(self, task_id: str) -> list[dict[str, Any]]:
        """Return where and when the task was started again: ``host`` and ``at`` (seconds since the epoch)."""
        return [_read_start(row) for row in self._store.client.lrange(self._key(task_id), 0, -1)]

    def add_start(self, task_id: str, worker: str = "") -> None:
        """Count a start of a redelivered task by the *worker* of this name.

        Without the store it is not counted; an outage is logged once.
        """
        row = json.dumps({"host": socket.gethostname(), "at": time.time(), "by": worker})
        with self._counting(), self._store.client.pipeline() as pipe:
            pipe.rpush(self._key(task_id), row)
            pipe.expire(self._key(task_id), REMEMBER)
            pipe.execute()

    def forget(self, task_id: str) -> None:
        """Forget the starts of a task that has ended; without the store they are kept for a week."""
        with self._counting():
            self._store.client.delete(self._key(task_id))

    def spare(self, requests: Iterable[Request]) -> None:
        """Do not count the starts of *requests*, which this worker runs: it was told to stop. May be called again."""
        client: Any = self._store.client
        for request in requests:
            tag = request.message.delivery_tag
            if tag in self._spared or not is_redelivered(request.delivery_info):
                continue
            key = self._key(counted_id(str(request.id), request.message.headers or {}))
            rows: list[bytes] = client.lrange(key, 0, -1)
            mine = next((row for row in reversed(rows) if _worker_of(row) == request.hostname), None)
            if mine is not None and client.lrem(key, -1, mine):
                self._spared.add(tag)

    def most(self, task: Any) -> int:
        """Return how often *task* may be started."""
        return getattr(task, "max_deliveries", None) or self._store.settings.max_deliveries

    def exceeded(self, message: Any, task: Any) -> list[dict[str, Any]] | None:
        """Return the starts of a redelivered *message* if it may not be started again, else None."""
        found: list[dict[str, Any]] = []
        with self._counting():
            found = self.starts(counted_id(str(message.headers["id"]), message.headers))
        # Without starts, it may only have waited in a worker that was stopped.
        return found if found and len(found) + 1 >= self.most(task) else None

    def bury(self, consumer: Any, message: Any, task: Any, starts: list[dict[str, Any]]) -> bool:
        """Make *message* a dead letter, mark its task as failed, and settle the message.

        If an entry is stored under its id, the dead letter gets another id. Returns False if the dead letter cannot be
        stored; this is logged, and the message is still held.
        """
        task_id = str(message.headers["id"])
        deliveries = len(starts) + 1
        places = ", ".join(f"{start['host']} at {_stamp(start['at'])}" for start in starts)
        times = f"{deliveries} times: at the first delivery, then on {places}"
        reason = f"its worker died, or could not store its result, {times}"
        try:
            buried = self._store_dead(message, task_id, reason, deliveries)
            why = "other entries already have all ids that it could get: redrive or delete them"
        except RedisQueueError as failure:
            buried, why = False, str(failure)
        if not buried:
            extra = {"action": "bury_failed", "task_id": task_id}
            logger.error("cannot make a dead letter of %s[%s]: %s", task.name, task_id, why, extra=extra)
            return False
        self.forget(counted_id(task_id, message.headers))
        logger.error(
            "task %s[%s] is a dead letter: %s",
            task.name,
            task_id,
            reason,
            extra={"action": "task_poisoned", "task_id": task_id},
        )
        error = MaxDeliveriesExceededError(f"{task.name}[{task_id}]: {reason}")
        _fail(consumer, message, task, error)
        task_poisoned.send(sender=task, task_id=task_id, deliveries=deliveries, exception=error)
        return True

    def _store_dead(self, message: Any, task_id: str, reason: str, deliveries: int) -> bool:
        envelope, queue = Envelope.of_message(message), self._store.delay_queue()
        attempt = Attempt.of(message.headers, message.delivery_info)
        return any(
            queue.foreign.bury(
                Push(envelope.pack(id_), id=id_, headers=envelope.storage_headers() or None),
                reason=reason,
                deliveries=deliveries,
            )
            for id_ in (task_id, sibling_id(task_id, attempt.call))
        )

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        try:
            yield
        except (RedisQueueError, *RedisErrors) as error:
            self._outage.note(error, retry_in=0)
        else:
            self._outage.end()

    @property
    def _store(self) -> Store:
        return Store.of(self._app)

    def _key(self, task_id: str) -> bytes:
        return PrefixKeys(self._store.prefix).starts(task_id)


class DeliveryLimitStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Checks each redelivered message against the DeliveryLimit before the worker handles it."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._limit, self._consumer = DeliveryLimit.of(consumer.app), consumer
        # Before the pool forks, and before Celery makes what runs them.
        fail_by_exits(consumer.app)
        self._cancelled: list[Any] = []
        # Not only close(): a solo pool runs its task first, and SIGKILL may follow SIGTERM.
        signals.worker_shutting_down.connect(self.told_to_stop, weak=False, sender=consumer.hostname)
        if hasattr(consumer.controller, "wait_for_soft_shutdown"):
            # A cold shutdown begins with it, and cancels the tasks before it sends the signal.
            around(consumer.controller, "wait_for_soft_shutdown", self._stop_softly)
        around(consumer, "on_connection_error_after_connected", self._lose_connection)

    def intake(self, handle: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return *handle*, which gets no message that may not be started again: that one becomes a dead letter."""

        def on_message(message: Any) -> Any:
            if is_redelivered(message.delivery_info) and self._is_buried(message):
                return None
            return handle(message)

        return on_message

    def _is_buried(self, message: Any) -> bool:
        # Celery refuses messages with other headers.
        headers = message.headers or {}
        name = headers.get("task") if headers.get("id") else None
        task = self._consumer.app.tasks.get(name) if isinstance(name, str) else None
        starts = self._limit.exceeded(message, task) if task is not None else None
        leases = LeaseStep.of_worker(self._consumer)
        if starts is None or not leases.may_be_ours(message.delivery_tag):
            return False
        # If it cannot be stored as a dead letter, better run it once more than lose it.
        if not self._limit.bury(self._consumer, message, task, starts):
            return False
        leases.count("dead")
        return True

    def start(self, consumer: Any) -> None:
        """Return the tasks that Celery cancelled because their connection was lost, and do not count their starts."""
        cancelled, self._cancelled = self._cancelled, []
        if cancelled:
            self._spare(cancelled)
        for request in cancelled:
            LeaseStep.of_worker(consumer).let_go(request)

    def _lose_connection(self, lose: Callable[[Exception], Any], error: Exception) -> Any:
        if self._consumer.app.conf.worker_cancel_long_running_tasks_on_connection_loss:
            self._cancelled += state.active_requests
        return lose(error)

    def _stop_softly(self, stop: Callable[[], Any]) -> Any:
        self.told_to_stop()
        return stop()

    def told_to_stop(self, **_: Any) -> None:
        """Do not count the starts of running tasks. Waits for Redis for at most :data:`SPARE_WITHIN` seconds."""
        # A signal handler must not wait for a silent Redis, and a handler of gevent for nothing.
        done = threading.Lock()
        done.acquire()

        def spare() -> None:
            try:
                self._spare(tuple(state.active_requests))
            finally:
                done.release()

        start_new_thread(spare, ())
        if not getattr(self._consumer.pool, "is_green", False):
            done.acquire(timeout=SPARE_WITHIN)

    def _spare(self, requests: Iterable[Any]) -> None:
        try:
            self._limit.spare(requests)
        except (RedisQueueError, *RedisErrors) as error:
            logger.warning("running tasks are counted as starts: %s", error, extra={"action": "spare_failed"})


def _worker_of(row: bytes) -> str | None:
    """Return the name of the worker that has recorded the start, itself or by a process of its pool."""
    try:
        return str(read_document(row)["by"])
    except (ValueError, TypeError, KeyError):
        return None


def _read_start(row: bytes | str) -> dict[str, Any]:
    """Return a start; an unreadable one still counts."""
    try:
        found = read_document(row)
        at = min(max(0.0, float(found["at"])), END_OF_CALENDAR_MS / 1000)
        return {"host": str(found["host"])[:MAX_HOST], "at": at}
    except (ValueError, TypeError, KeyError, OverflowError):
        return {"host": "an unknown host", "at": 0.0}


def _fail(consumer: Any, message: Any, task: Any, error: Exception) -> None:
    request = Request(
        message,
        app=consumer.app,
        hostname=consumer.hostname,
        eventer=consumer.event_dispatcher,
        connection_errors=consumer.connection_errors,
        task=task,
        on_ack=lambda *_: message.ack_log_error(logger, consumer.connection_errors),
        on_reject=lambda *_: message.reject_log_error(logger, consumer.connection_errors, False),
        decoded=False,
        headers=message.headers,
        body=message.body,
        utc=True,
    )
    try:
        raise error
    except MaxDeliveriesExceededError:
        info = ExceptionInfo()
    try:
        request.on_failure(info)
    except Exception:
        # For Celery it would be an error of the broker, or end the worker.
        logger.exception("cannot store the failure of %s[%s]", task.name, request.id, extra={"action": "state_unknown"})
    activity = getattr(consumer, "redis_queue_activity", None)
    if activity is not None:
        # Its runs were counted as retried, or died uncounted with their workers.
        activity.ended(request, "failed", None, kept=False)
    if not message.acknowledged:
        message.ack_log_error(logger, consumer.connection_errors)


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _counted(app: Celery, delivery_info: Any) -> DeliveryLimit | None:
    """Return the limit that counts a message with *delivery_info*: a redelivered one, of an app with leases."""
    return DeliveryLimit.of(app) if is_redelivered(delivery_info) and has_leases(app) else None


def count_starts() -> None:
    """Count the starts of redelivered tasks in this process, for apps with leases; no-op if already installed."""
    signals.task_prerun.connect(_count_start, weak=False, dispatch_uid="redis_queue_count_start")
    signals.task_postrun.connect(_forget_starts, weak=False, dispatch_uid="redis_queue_forget_starts")
    signals.task_revoked.connect(_forget_revoked, weak=False, dispatch_uid="redis_queue_forget_revoked")


def _count_start(task_id: str, task: Any, **_: Any) -> None:
    # A task that is acknowledged before it starts is never redelivered.
    if task.acks_late and (limit := _counted(task.app, task.request.delivery_info)):
        limit.add_start(counted_id(task_id, vars(task.request)), task.request.hostname)


def _forget_starts(task_id: str, task: Any, state: Any = None, **_: Any) -> None:
    # Without a state its process is about to die: of sys.exit(), KeyboardInterrupt, or a signal. With an error its
    # result could not be stored: only a worker whose pool has other processes settles the message.
    unsettled = state is None or (sys.exc_info()[0] is not None and task_id in held_requests)
    if not unsettled and (limit := _counted(task.app, task.request.delivery_info)):
        limit.forget(counted_id(task_id, vars(task.request)))


def _forget_revoked(sender: Any, request: Any, **_: Any) -> None:
    # The task is the sender; the request has only its name.
    if limit := _counted(sender.app, request.delivery_info):
        limit.forget(counted_id(request.id, vars(request)))
