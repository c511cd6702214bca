"""DispatchReport: write what a dispatcher did into Redis, at most once a second."""

from __future__ import annotations

import math
import time
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from redis_queue.basics.logs import logger_of
from redis_queue.celery.dispatch.outcome import Dispatched
from redis_queue.delay.dispatch_log import DispatcherRow
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import RedisQueueError

logger = logger_of(__name__)

BUSY: Final = 1.0
"""Seconds between two writes while entries are dispatched; a crash loses the counts of this time."""

IDLE: Final = 10.0
"""Seconds between two signs of life."""


class DispatchReport:
    """Collects what the dispatcher *name* did and writes it when it is time; a failed write is repeated later.

    Never raises: dispatching matters more than counts. Without a *name* only the counts are kept. Not safe for threads.
    """

    def __init__(self, queue: DelayQueue, name: str = "") -> None:
        self._queue = queue
        self._name = name
        self._written_at = -math.inf
        self._unwritten = Dispatched()
        self._total = Dispatched()
        self._failing = False
        #: Why the last turn failed; empty after a turn that went well.
        self.error = ""

    def add(self, done: Dispatched) -> None:
        """Add the result of a turn that went well."""
        self.error = ""
        self._unwritten += done
        self._total += done

    def due_in(self) -> float:
        """Return the seconds until :meth:`write` has something to do."""
        busy = self._unwritten != Dispatched() and not self._failing
        return max(0.0, self._written_at + (BUSY if busy else IDLE) - time.monotonic())

    def write(self, *, leads: bool, at_once: bool = False) -> None:
        """Write if it is time; with *at_once*, if there is anything to write."""
        if self.due_in() <= 0 or (at_once and self._unwritten != Dispatched()):
            self._send(leads=leads, left=False)

    def leave(self) -> None:
        """Write the rest, and remove this dispatcher from the list."""
        self._send(leads=False, left=True)

    def _send(self, *, leads: bool, left: bool) -> None:
        self._written_at = time.monotonic()
        try:
            self._queue.dispatch_log.note(
                self._unwritten.counts, worst=self._unwritten.worst, dispatcher=self._row(leads=leads), left=left
            )
            self._unwritten = Dispatched()
            self._failing = False
        except RedisQueueError as error:
            if not self._failing:
                logger.warning("cannot write dispatch counts: %s", error, extra={"action": "note_failed"})
            self._failing = True

    def _row(self, *, leads: bool) -> DispatcherRow | None:
        if not self._name:
            return None
        now = datetime.now(timezone.utc)
        return DispatcherRow(
            self._name, now, leads, installed_version(), self._total.sent, self._total.failed, self.error
        )


@cache
def installed_version() -> str:
    """Return the version of redis_queue, "" if it is not installed."""
    try:
        return version("celery-redis-queue")
    except PackageNotFoundError:
        return ""
