"""DispatchNotes: what a dispatcher did goes into Redis, seldom enough to cost nothing."""

from __future__ import annotations

import math
import time
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from redis_queue.celery.dispatch.delivery import Dispatched
from redis_queue.delay.lateness import DispatcherRow
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import RedisQueueError
from redis_queue.logs import logger_of

logger = logger_of(__name__)

BUSY: Final = 1.0
"""Seconds between two writes while something is dispatched: what a crash may lose."""

IDLE: Final = 10.0
"""Seconds between two signs of life."""


class DispatchNotes:
    """Collects what the dispatcher *name* did and writes it when it is time; a write that fails is left for later.

    Nothing here raises: counts matter less than dispatching. Without a *name* only the counts are kept. Not for several
    threads at once.
    """

    def __init__(self, queue: DelayQueue, name: str = "") -> None:
        self._queue = queue
        self._name = name
        self._written_at = -math.inf
        self._kept = Dispatched()
        self._total = Dispatched()
        self._failing = False
        #: Why the last turn failed; empty again once one went well.
        self.error = ""

    def add(self, done: Dispatched) -> None:
        """Collect what a turn that went well did."""
        self.error = ""
        self._kept += done
        self._total += done

    def due_in(self) -> float:
        """Return the seconds until :meth:`write` has something to do."""
        busy = self._kept != Dispatched() and not self._failing
        return max(0.0, self._written_at + (BUSY if busy else IDLE) - time.monotonic())

    def write(self, *, leads: bool, at_once: bool = False) -> None:
        """Write if it is time; with *at_once* if there is anything."""
        if self.due_in() <= 0 or (at_once and self._kept != Dispatched()):
            self._send(leads=leads, left=False)

    def leave(self) -> None:
        """Write what is left, and that this dispatcher is gone."""
        self._send(leads=False, left=True)

    def _send(self, *, leads: bool, left: bool) -> None:
        self._written_at = time.monotonic()
        try:
            self._queue.dispatch_log.note(
                self._kept.counts, worst=self._kept.worst, dispatcher=self._row(leads=leads), left=left
            )
            self._kept = Dispatched()
            self._failing = False
        except RedisQueueError as error:
            if not self._failing:
                logger.warning("cannot note what was dispatched: %s", error, extra={"action": "note_failed"})
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
    """Return the version of redis_queue, empty where it was not installed."""
    try:
        return version("celery-redis-queue")
    except PackageNotFoundError:
        return ""
