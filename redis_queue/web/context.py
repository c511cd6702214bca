"""Per-application state of the dashboard: access, reports of workers, audit, and the findings of the doctor."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flask import current_app

from redis_queue.basics.logs import logger_of
from redis_queue.doctor.finding import ORDER, Finding
from redis_queue.errors import RedisQueueError
from redis_queue.operate.access import Access
from redis_queue.operate.audit import Audit
from redis_queue.operate.diagnosis import examine
from redis_queue.store.redis_errors import redact

CHECK_EVERY: Final = 60.0
"""Seconds between two checks."""

FIRST_WAIT: Final = 0.2
"""Seconds for which a page waits for the first check; it never waits for a later one."""

MOST_QUEUES: Final = 200
"""With more queues, only the page of the doctor checks: the checks of each queue add up."""

_log = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check that ended *seconds* ago: numbers of errors and warnings, and the worst finding.

    *failure* says why the check could not be done.
    """

    seconds: float
    errors: int = 0
    warnings: int = 0
    worst: Finding | None = None
    failure: str = ""


class Health:
    """The last findings of the doctor for one dashboard."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._findings: Sequence[Finding] = ()
        self._failure = ""
        self._checked_at: float | None = None
        self._thread: threading.Thread | None = None

    def checked(self, queues: int) -> Checked | None:
        """Return the last result; None if there is none yet.

        Starts a check if the last one is older than :data:`CHECK_EVERY`; only if there is none, it waits for the result
        up to :data:`FIRST_WAIT`. With more than :data:`MOST_QUEUES` *queues* it starts none.
        """
        if queues <= MOST_QUEUES:
            self._start()
        with self._lock:
            if self._checked_at is None:
                return None
            age = time.monotonic() - self._checked_at
            problems = sorted(
                (finding for finding in self._findings if not finding.silent),
                key=lambda finding: ORDER[finding.severity],
            )
            errors = sum(finding.severity == "error" for finding in problems)
            warnings = sum(finding.severity == "warning" for finding in problems)
            return Checked(age, errors, warnings, problems[0] if problems else None, self._failure)

    def note(self, findings: Sequence[Finding], failure: str = "") -> None:
        """Keep the result of a check."""
        with self._lock:
            self._findings, self._failure, self._checked_at = findings, failure, time.monotonic()

    def _start(self) -> None:
        with self._lock:
            is_fresh = self._checked_at is not None and time.monotonic() - self._checked_at < CHECK_EVERY
            if is_fresh:
                return
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._check, name="redis_queue-health", daemon=True)
                self._thread.start()
            first = self._thread if self._checked_at is None else None
        if first is not None:
            first.join(FIRST_WAIT)

    def _check(self) -> None:
        try:
            # A request to the workers would write to the broker.
            self.note(examine(self._access, ask=False))
        except RedisQueueError as error:
            self.note((), redact(str(error)))
        except Exception:  # noqa: BLE001 - nobody else would see it
            _log.exception("cannot check the queues")
            self.note((), "see the log of the dashboard")


EXTENSION: Final = "redis_queue"
"""Key of the context in ``app.extensions``."""


class Context:
    """Access to the queues of one dashboard, the reports of workers, its audit log, and the findings of the doctor."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.catalog = access.catalog
        self.inspector = access.inspector
        self.audit = Audit(access.catalog.client, access.catalog.prefix)
        self.monitor = access.monitor
        self.health = Health(access)


def context() -> Context:
    """Return the context of the application that serves this request."""
    found: Context = current_app.extensions[EXTENSION]
    return found
