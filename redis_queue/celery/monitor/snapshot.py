"""Snapshot: the state of a worker and the tasks that it runs, at this moment."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import celery
from celery.worker import state

from redis_queue.basics.times import from_ms, monotonic
from redis_queue.celery.dispatch.outcome import installed_version
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.kombu.keys import ListNames
from redis_queue.celery.message.body import retries_in
from redis_queue.celery.monitor.activity import Activity
from redis_queue.celery.store import Store
from redis_queue.monitor.model import LeaseState, RunningTask, WorkerRow
from redis_queue.monitor.report import MAX_RUNNING
from redis_queue.monitor.rows import MAX_ARGUMENTS, MAX_RAW, MAX_TEXT, private_text, release_text
from redis_queue.store.urls import url_of

MIN_REPORTED_SECONDS: Final = 1.0
"""Seconds after which a running task is reported."""

RELEASE_VARIABLES: Final = (
    "REDIS_QUEUE_RELEASE",
    "GIT_SHA",
    "GIT_COMMIT",
    "SOURCE_VERSION",
    "HEROKU_SLUG_COMMIT",
    "SENTRY_RELEASE",
    "RELEASE",
)
"""Environment variables with the release of the app; the first one that is set counts."""

_STATM: Final = Path("/proc/self/statm")

_ROW: Final = "redis_queue_row"
"""Attribute of a request that holds its RunningTask, which does not change."""

_TRIES: Final = 10


class Snapshots:
    """Describes the worker of *consumer*, whose runs *activity* notes, and running tasks, with their *arguments*."""

    def __init__(self, consumer: Any, activity: Activity, *, arguments: bool = True) -> None:
        self._arguments = MAX_RAW if arguments else 0
        self._consumer = consumer
        self._activity = activity
        self._began = time.time()
        self._versions = {
            "redis_queue": installed_version(),
            "celery": celery.__version__,
            "python": platform.python_version(),
        }
        #: When the event loop turned last, on the monotonic clock; None without an event loop.
        self.loop_at: float | None = None
        self._names: ListNames | None = None

    def connect(self) -> None:
        """Find out where the queues of the worker are, once it has connected."""
        self._names = _names_of(self._consumer)

    def worker(self, skew: float) -> WorkerRow:
        """Return the state of the worker; *skew* is how many seconds the clock of Redis is ahead."""
        consumer, activity, now = self._consumer, self._activity, monotonic()
        running, reserved = len(self._requests(state.active_requests)), self._requests(state.reserved_requests)
        step = self._step()
        # Those of the messages of the broker; without them, those of messages of flows.
        leases = step and (step.leases or step.store_leases)
        activity.look()
        executed, failed = activity.last_minute
        return WorkerRow(
            consumer.hostname,
            from_ms((time.time() + skew) * 1000),
            from_ms((self._began + skew) * 1000),
            host=socket.gethostname(),
            pid=os.getpid(),
            pool=_pool_name(consumer.pool),
            concurrency=_concurrency(consumer.pool),
            busy=running,
            prefetched=max(0, len(reserved) - running),
            queues=self._queues(),
            executed=activity.executed,
            failed=activity.failures,
            executed_per_minute=executed,
            failed_per_minute=failed,
            memory=_memory(),
            versions=self._versions,
            loop_age=None if self.loop_at is None else now - self.loop_at,
            settled_age=None if activity.ended_at is None else now - activity.ended_at,
            keeper=None if leases is None else leases.keeper_is_up,
            held=Counter(activity.queue_of(request.delivery_info) for request in reserved),
            lists=self._lists(),
            limited=self._limited(),
            stopping=_is_stopping(),
            release=activity.release,
        )

    def running(self, skew: float) -> list[RunningTask]:
        """Return the tasks that have run for MIN_REPORTED_SECONDS, longest first, at most :data:`MAX_RUNNING`."""
        latest = time.time() - MIN_REPORTED_SECONDS
        long = [found for found in self._requests(state.active_requests) if (found.time_start or latest) < latest]
        long.sort(key=lambda request: request.time_start)
        return [self._row(request, skew) for request in long[:MAX_RUNNING]]

    def _requests(self, found: Any) -> list[Any]:
        """Return the requests of this worker in a WeakSet that other threads change."""
        for _ in range(_TRIES):
            try:
                return [request for request in found if getattr(request, "activity_of_worker", None) is self._activity]
            except RuntimeError:
                # It changed size; this happens rarely, since its loop is short.
                continue
        return []

    def _row(self, request: Any, skew: float) -> RunningTask:
        row: RunningTask | None = vars(request).get(_ROW)
        lease = self._lease(request)
        if row is None or row.lease != lease:
            headers = request.request_dict
            row = RunningTask(
                str(request.id)[:MAX_TEXT],
                str(headers.get("task"))[:MAX_TEXT],
                self._activity.queue_of(request.delivery_info)[:MAX_TEXT],
                self._consumer.hostname,
                from_ms((request.time_start + skew) * 1000),
                self._text(headers.get("argsrepr")),
                self._text(headers.get("kwargsrepr")),
                2 if request.delivery_info.get("redelivered") else 1,
                retries_in(headers),
                lease,
                *(str(headers.get(name) or "")[:MAX_TEXT] for name in ("parent_id", "root_id", "group")),
            )
            setattr(request, _ROW, row)
        return row

    def _text(self, found: Any) -> str:
        return private_text(str(found or "")[: self._arguments], MAX_ARGUMENTS)

    def _lease(self, request: Any) -> LeaseState:
        step, tag = self._step(), request.message.delivery_tag
        leases = None if step is None else step.of(tag)
        if leases is None:
            return "none"
        return "held" if leases.holds(tag) or not request.task.acks_late else "lost"

    def _step(self) -> Any:
        return getattr(self._consumer, "redis_queue_lease_step", None)

    def _queues(self) -> tuple[str, ...]:
        found = getattr(self._consumer.task_consumer, "queues", None) or ()
        return tuple(str(queue.name) for queue in tuple(found))

    def _limited(self) -> int:
        # Celery counts a task as reserved only after its rate limit has let it pass.
        buckets = tuple(self._consumer.task_buckets.values())
        return sum(len(bucket.contents) for bucket in buckets if bucket is not None)

    def _lists(self) -> tuple[str, ...]:
        if self._names is None:
            return ()
        return tuple(key for queue in self._queues() for key in self._names.all_of(queue))


def reported_since(request: Any) -> datetime | None:
    """Return since when *request* runs by the last report; None if it was not reported."""
    row: RunningTask | None = vars(request).get(_ROW)
    return None if row is None else row.since


def release_of(setting: str | None) -> str:
    """Return the release of the app: *setting*, else that of the environment; "" if it is unknown."""
    found = (os.environ.get(name, "").strip() for name in RELEASE_VARIABLES)
    return release_text(setting or next(filter(None, found), ""))


def _names_of(consumer: Any) -> ListNames | None:
    """Return the names of the lists of *consumer*'s broker, if it is the Redis that keeps the reports."""
    connection = consumer.connection
    if connection is None or connection.transport.driver_type != "redis":
        return None
    same = url_of(client_of(connection.default_channel)) == url_of(Store.of(consumer.app).client)
    return ListNames.of(connection.transport_options) if same else None


def _pool_name(pool: Any) -> str:
    return type(pool).__module__.rpartition(".")[2] if pool is not None else ""


def _concurrency(pool: Any) -> int:
    try:
        # The gevent pool of Celery 5.5 counts its running tasks as processes.
        return int(pool.limit if _pool_name(pool) == "gevent" else pool.num_processes)
    except (AttributeError, TypeError, NotImplementedError):
        return 0


def _memory() -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _is_stopping() -> bool:
    # An exit code, which may be 0; or else None or False.
    return any(told is not None and told is not False for told in (state.should_stop, state.should_terminate))
