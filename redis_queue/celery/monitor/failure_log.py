"""FailureLog: what failed in a worker since its last report, written each second if there is something."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import from_ms, monotonic
from redis_queue.celery.message.body import retries_in
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.monitor.activity import QueueOf, exception_name, text_of, unwrapped
from redis_queue.celery.settings import KeepFailures
from redis_queue.errors import RedisQueueError
from redis_queue.monitor.failure_rows import MAX_MESSAGE, cut_middle, failure_id, name_of
from redis_queue.monitor.failures import MAX_AT_ONCE, Failures
from redis_queue.monitor.model import Failure, FailureKind
from redis_queue.monitor.rows import MAX_RAW

logger = logger_of(__name__)


TRIM: Final = 600.0
"""Seconds after which a worker without failures removes those that are too old."""


class FailureLog:
    """Notes failed runs and discarded messages in the main process of a worker; *limits* says how many are kept.

    Without *limits* it notes none, without *arguments* not their texts. It holds up to 100; more are only counted.
    Notes never raise: a failure that cannot be noted must not disturb the worker. Safe for threads.
    """

    def __init__(
        self, worker: str, queue_of: QueueOf, limits: KeepFailures | None, release: str = "", *, arguments: bool = True
    ) -> None:
        self._worker = worker
        self._arguments = arguments
        self._release = release
        self._queue_of = queue_of
        self._limits = limits
        self._trimmed = monotonic()
        self._failing = False
        self._lock = threading.Lock()
        self._noted: list[Failure] = []
        self._taken = self._missed = self._missed_taken = 0

    def note(self, request: Any, exc_info: Any, seconds: float | None) -> None:
        """Record a run of *request* that failed for good, after *seconds*."""
        self._note(lambda: self._of_request(request, exc_info, seconds))

    def note_message(self, kind: FailureKind, message: Any, reason: BaseException | str) -> None:
        """Record a *message* that Celery discarded."""
        self._note(lambda: self._of_message(kind, message, reason))

    def take(self, skew: float = 0.0) -> tuple[list[Failure], int]:
        """Return up to 100 that were noted and not :meth:`written`, and how many could not be noted.

        *skew* is how many seconds the clock of Redis is ahead.
        """
        with self._lock:
            # Threads may have noted some more at the same time: they are next.
            found = self._noted[:MAX_AT_ONCE]
            self._taken, self._missed_taken = len(found), self._missed
        return [_shifted(failure, skew) for failure in found], self._missed_taken

    def written(self) -> None:
        """Forget what the last :meth:`take` returned."""
        with self._lock:
            del self._noted[: self._taken]
            self._missed -= self._missed_taken
            self._taken = self._missed_taken = 0

    def write(self, failures: Failures, skew: float) -> None:
        """Write what was noted since the last call that succeeded; errors of Redis are logged once.

        *skew* is how many seconds the clock of Redis is ahead.
        """
        if self._limits is None:
            return
        found, missed = self.take(skew)
        if not found and not missed and monotonic() - self._trimmed < TRIM:
            return
        try:
            failures.keep(found, self._limits.tasks, self._limits.days, missed)
        except RedisQueueError as error:
            if not self._failing:
                logger.warning("cannot keep failed tasks: %s", error, extra={"action": "failures_not_kept"})
            self._failing = True
            return
        self._failing = False
        self.written()
        self._trimmed = monotonic()

    def _note(self, read: Callable[[], Failure]) -> None:
        if self._limits is None:
            return
        try:
            with self._lock:
                full = len(self._noted) >= MAX_AT_ONCE
                self._missed += full
            if full:
                return
            failure = read()
            with self._lock:
                self._noted.append(failure)
        except Exception as error:  # noqa: BLE001 - as the class says
            logger.warning("cannot keep a failure: %s", type(error).__name__, extra={"action": "failure_not_kept"})

    def _of_request(self, request: Any, exc_info: Any, seconds: float | None) -> Failure:
        error = unwrapped(exc_info.exception)
        return self._failure(
            request.message,
            request.request_dict,
            exception=exception_name(error),
            message=text_of(error),
            traceback=cut_middle(str(exc_info.traceback or "")),
            attempts=retries_in(request.request_dict) + 1,
            seconds=_run_time(request, seconds),
        )

    def _of_message(self, kind: FailureKind, message: Any, reason: BaseException | str) -> Failure:
        headers = message.headers if isinstance(message.headers, Mapping) else {}
        if kind == "unregistered":
            # Celery found no task under this name.
            name = reason.args[0] if isinstance(reason, KeyError) and reason.args else headers.get("task")
            known = {"id": (message.properties or {}).get("correlation_id"), **headers, "task": name}
            text = "no task of this worker has this name"
            return self._failure(message, known, kind=kind, exception="NotRegistered", message=text, attempts=0)
        name = exception_name(reason) if isinstance(reason, BaseException) else ""
        unnamed = {**headers, "id": None}
        return self._failure(message, unnamed, kind=kind, exception=name, message=text_of(reason), attempts=0)

    def _failure(self, source: Any, headers: Mapping[str, Any], **fields: Any) -> Failure:
        id_ = headers.get("id")
        names = ("argsrepr", "kwargsrepr") if self._arguments else ()
        args, kwargs = (_text(headers.get(name)) for name in names) if names else ("", "")
        return Failure(
            id=failure_id(id_) if isinstance(id_, str) and id_ else uuid4().hex,
            task=name_of(_text(headers.get("task"))),
            queue=name_of(self._queue_of(source.delivery_info)),
            worker=name_of(self._worker),
            failed_at=from_ms(time.time() * 1000),
            args=args,
            kwargs=kwargs,
            body=packed(source),
            release=self._release,
            **fields,
        )


def packed(message: Any) -> bytes | None:
    """Return the published *message* in compact form; None if it is too large, or cannot be packed."""
    if len(message.body or b"") > MAX_MESSAGE:
        return None
    with contextlib.suppress(Exception):
        found = Envelope.of_message(message).pack("")
        return found if len(found) <= MAX_MESSAGE else None
    return None


def _shifted(failure: Failure, skew: float) -> Failure:
    return replace(failure, failed_at=from_ms(failure.failed_at.timestamp() * 1000 + skew * 1000))


def _run_time(request: Any, seconds: float | None) -> float | None:
    # Celery tells the run time of successful runs only.
    if seconds is not None or request.time_start is None:
        return seconds
    return max(0.0, time.time() - float(request.time_start))


def _text(found: Any) -> str:
    return found[:MAX_RAW] if isinstance(found, str) else ""
