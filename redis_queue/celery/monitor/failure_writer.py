"""FailureWriter: writes what a FailureLog holds, each second if there is something."""

from __future__ import annotations

import time
from typing import Final

from redis_queue.basics.logs import logger_of
from redis_queue.celery.monitor.failure_log import FailureLog
from redis_queue.celery.settings import KeepFailures
from redis_queue.errors import RedisQueueError
from redis_queue.monitor.failures import Failures

logger = logger_of(__name__)

TRIM: Final = 600.0
"""Seconds after which a worker without failures removes those that are too old."""


class FailureWriter:
    """Writes the failures of *log*, of which as many as *limits* says are kept."""

    def __init__(self, log: FailureLog, limits: KeepFailures) -> None:
        self._log = log
        self._limits = limits
        self._trimmed = time.monotonic()
        self._failing = False

    def write(self, failures: Failures, skew: float) -> None:
        """Write what was noted since the last call that succeeded; errors of Redis are logged once.

        *skew* is how many seconds the clock of Redis is ahead.
        """
        found, missed = self._log.take(skew)
        if not found and not missed and time.monotonic() - self._trimmed < TRIM:
            return
        try:
            failures.keep(found, self._limits.tasks, self._limits.days, missed)
        except RedisQueueError as error:
            if not self._failing:
                logger.warning("cannot keep failed tasks: %s", error, extra={"action": "failures_not_kept"})
            self._failing = True
            return
        self._failing = False
        self._log.written()
        self._trimmed = time.monotonic()
