"""Task requests that note how each run ended, in the main process of a worker."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from billiard.einfo import ExceptionInfo
from billiard.exceptions import TimeLimitExceeded
from celery.exceptions import Ignore, Reject, Retry
from kombu.utils.imports import symbol_by_name

from redis_queue.celery.kombu.internals import MONITOR, has
from redis_queue.celery.monitor.activity import Activity, unwrapped
from redis_queue.monitor.model import Outcome

REQUEST: Final = "Request"
"""Attribute of a task: its class of requests, or the name of one."""


# Two workers of one process share the tasks of an app.
_alone: Final = threading.Lock()


@contextlib.contextmanager
def noted_requests(tasks: Iterable[Any], activity: Activity) -> Iterator[None]:
    """Within the block, Celery makes strategies of *tasks* whose requests tell *activity* how each run ended.

    The request classes of an application are extended, not replaced.
    """
    if not has(MONITOR):
        yield
        return
    changed: list[tuple[Any, Any]] = []
    classes: dict[Any, type] = {}
    with _alone:
        try:
            for task in tasks:
                base = getattr(task, REQUEST)
                if base not in classes:
                    bases = (RequestNotes, symbol_by_name(base))
                    classes[base] = type("NotedRequest", bases, {"activity_of_worker": activity})
                changed.append((task, vars(task).get(REQUEST)))
                setattr(task, REQUEST, classes[base])
            yield
        finally:
            for task, before in changed:
                if before is None:
                    delattr(task, REQUEST)
                else:
                    setattr(task, REQUEST, before)


class RequestNotes:
    """Mixin for a request of Celery: tells ``activity_of_worker`` how its run ended, once."""

    activity_of_worker: Activity
    _seconds: float | None = None
    _error: BaseException | None = None
    _requeued = _retried = _succeeded = _is_noted = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Celery makes a subclass for each task; its on_success does not call that of this class.
        original = vars(cls).get("on_success")
        if original is not None:
            setattr(cls, "on_success", _noting_success(original))  # noqa: B010 - mypy takes it for a method

    def on_failure(self, exc_info: Any, *args: Any, **options: Any) -> Any:
        """Handle a failed, retried, rejected or ignored run."""
        try:
            return super().on_failure(exc_info, *args, **options)  # type: ignore[misc]
        finally:
            _note_failure(self, exc_info)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Handle a run that reached a time limit."""
        super().on_timeout(soft, timeout)  # type: ignore[misc]
        if not soft:
            _note_failure(self, _time_limit(timeout))

    def reject(self, requeue: bool = False) -> None:
        self._requeued = self._requeued or requeue
        super().reject(requeue=requeue)  # type: ignore[misc]

    def _announce_revoked(self, *args: Any) -> None:
        # First: it settles the message, after which the worker may start other tasks.
        _note(self, "revoked")
        super()._announce_revoked(*args)  # type: ignore[misc]

    def _success_was_stored(self) -> Any:
        found = super()._success_was_stored()  # type: ignore[misc]
        self._succeeded = bool(found)
        return found

    def _retry_worker_lost(self, *args: Any) -> bool:
        self._retried = bool(super()._retry_worker_lost(*args))  # type: ignore[misc]
        return self._retried


def _noting_success(original: Callable[..., Any]) -> Callable[..., Any]:
    def on_success(self: Any, result: Any, **options: Any) -> Any:
        # A failed run continues in on_failure.
        if result[0]:
            self._seconds = result[2]
        elif not self._is_noted:
            self._is_noted = True
            self.activity_of_worker.ended(self, "succeeded", result[2])
        return original(self, result, **options)

    return on_success


def _note(request: Any, outcome: Outcome) -> None:
    if not request._is_noted:
        request._is_noted = True
        request.activity_of_worker.ended(request, outcome, request._seconds)


def _note_failure(request: Any, exc_info: Any) -> None:
    # A terminated task was revoked; one whose worker shuts down comes back.
    if request._is_noted or request._already_revoked or request._already_cancelled:
        return
    request._error = unwrapped(exc_info.exception)
    outcome = _outcome(request, request._error)
    if outcome == "failed":
        request.activity_of_worker.failed(request, exc_info, request._seconds)
    _note(request, outcome)


def _outcome(request: Any, error: BaseException) -> Outcome:
    if isinstance(error, Retry) or request._requeued or request._retried:
        return "retried"
    if request._succeeded or (isinstance(error, Ignore) and not isinstance(error, Reject)):
        return "succeeded"
    return "failed"


def _time_limit(timeout: float) -> ExceptionInfo:
    try:
        raise TimeLimitExceeded(timeout)
    except TimeLimitExceeded:
        return ExceptionInfo()
