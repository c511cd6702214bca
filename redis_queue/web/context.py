"""State of one dashboard: access, audit, findings of the doctor; and the DelayQueue of a request."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from flask import current_app, render_template

from redis_queue.basics.logs import logger_of
from redis_queue.catalog import open_as
from redis_queue.delay.queue import DelayQueue
from redis_queue.doctor.finding import ORDER, Finding
from redis_queue.errors import RedisQueueError
from redis_queue.operate.access import Access
from redis_queue.operate.audit import Audit
from redis_queue.operate.diagnosis import examine
from redis_queue.store.redis_errors import redact
from redis_queue.store.registry import RegistryRow
from redis_queue.store.settings import Settings

CHECK_EVERY: Final = 60.0
"""Seconds between two checks."""

FIRST_WAIT: Final = 0.2
"""Seconds for which a page waits for the first check; it never waits for a later one."""

MAX_CHECKED: Final = 200
"""With more queues, only the page of the doctor checks: the checks of each queue add up."""

_log = logger_of(__name__)

EXTENSION: Final = "redis_queue"
"""Key of the context in ``app.extensions``."""

MAX_NAMES: Final = 200
"""Maximum number of queue names in a form."""


@dataclass(frozen=True, slots=True)
class HealthSummary:
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

    def checked(self, queues: int) -> HealthSummary | None:
        """Return the last result; None if there is none yet.

        Starts a check if the last one is older than :data:`CHECK_EVERY`; only if there is none, it waits for the result
        up to :data:`FIRST_WAIT`. With more than :data:`MAX_CHECKED` *queues* it starts none.
        """
        if queues <= MAX_CHECKED:
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
            return HealthSummary(age, errors, warnings, problems[0] if problems else None, self._failure)

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


class Context:
    """Access to the queues of one dashboard, its audit log, and the findings of the doctor."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.audit = Audit(access.catalog.client, access.catalog.prefix)
        self.health = Health(access)


def context() -> Context:
    """Return the context of the application that serves this request."""
    found: Context = current_app.extensions[EXTENSION]
    return found


def page(template: str, **values: Any) -> str:
    """Return a page from *template*, with the time of Redis as *now*."""
    return render_template(template, now=context().access.inspector.now(), **values)


def delay_queues(name: str | None) -> tuple[DelayQueue, list[str]]:
    """Return the DelayQueue *name* and the names for a form; by default that of Celery tasks, or else the first."""
    access = context().access
    names = [known.name for known in access.catalog.listing(kind="delay", limit=MAX_NAMES).known]
    if name is None and names and access.app is None and access.default_delay_queue not in names:
        name = names[0]
    if name is None and not names and access.app is None:
        # There is no queue yet: an empty page is better than an error.
        known = Settings()
        first = RegistryRow("delay", access.default_delay_queue, known.max_deliveries, known.shards)
        queue = open_as(DelayQueue, first, access.catalog)
    else:
        queue = access.delay_queue(name)
    return queue, sorted({*names, queue.name})
