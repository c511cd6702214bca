"""The listing of failed tasks, and the queue through which they are sent again."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta

from redis_queue.basics.times import When
from redis_queue.celery.message.task_entry import Conditions
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidNameError, InvalidValueError
from redis_queue.monitor.model import Failure
from redis_queue.operate.access import Access
from redis_queue.operate.listing import Chunk, Listing, SearchReport


class FailureList(Listing[Failure, str]):
    """The failures that are kept, the last one first; spans of time are counted back from now."""

    noun = "failures"

    def __init__(self, access: Access, conditions: Conditions, scan: SearchReport | None = None) -> None:
        super().__init__(conditions, scan)
        self._failures = access.monitor.failures
        self._window = {"since": point(access, conditions.due_after), "until": point(access, conditions.due_before)}

    @property
    def searches(self) -> bool:
        """Whether failures in the time window may not match."""
        return self.conditions.has("task", "exception", "text", "worker")

    def read(self, cursor: str | None, size: int, budget: int | None) -> Chunk[Failure, str]:  # noqa: ARG002
        """Read failures, without their tracebacks and messages."""
        rows, following = self._failures.list(after=cursor, limit=size, **self._window)
        return Chunk([(row, self._failures.cursor(row)) for row in rows], following)

    def match(self, item: Failure) -> bool:
        """Tell whether the failure matches, and count it."""
        self.scan.add(item.task)
        return self.conditions.match(item)


def point(access: Access, when: When | None) -> datetime | None:
    """Return *when* as a time of the server; a span is counted back from now, whatever its sign."""
    return access.inspector.now() - abs(when) if isinstance(when, timedelta) else when


def is_dispatched(access: Access) -> bool:
    """Tell whether a process dispatches the DelayQueue of Celery tasks: without one, retried tasks wait."""
    with contextlib.suppress(InvalidValueError):
        return bool(delay_queue_of(access).dispatch_log.dispatchers())
    return False


def delay_queue_of(access: Access) -> DelayQueue:
    """Return the DelayQueue of Celery tasks; raises InvalidValueError if it is unknown, which cannot be for an app."""
    try:
        return access.delay_queue()
    except InvalidNameError as error:
        raise InvalidValueError(
            f"{error}: name the Celery app (redis-queue -A APP …), so that its first delayed task can be stored"
        ) from None
