"""State of one dashboard: access, audit, findings of the doctor, incidents; and the DelayQueue of a request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Any, Final, Generic, TypeVar

from flask import current_app, render_template

from redis_queue.basics.logs import hide_secrets, logger_of
from redis_queue.basics.times import monotonic
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import RedisQueueError
from redis_queue.operate.access import Access
from redis_queue.operate.audit import Audit
from redis_queue.operate.diagnosis import examine
from redis_queue.operate.incidents.registry import current

T = TypeVar("T")

CHECK_EVERY: Final = 60.0
"""Seconds between two checks of the doctor."""

LOOK_EVERY: Final = 5.0
"""Seconds between two looks for incidents."""

SHARE: Final = 10
"""A look is repeated after this multiple of the time that it took, or later."""

FIRST_WAIT: Final = 0.2
"""Seconds for which a page waits for the first look."""

OLD_AFTER: Final = 60.0
"""Seconds after which a result is too old to be shown, from when the next look was due: nobody had a page open."""

MAX_CHECKED: Final = 200
"""With more queues, only the page of the doctor checks: the checks of each queue add up."""

_log = logger_of(__name__)

EXTENSION: Final = "redis_queue"
"""Key of the context in ``app.extensions``."""

MAX_NAMES: Final = 200
"""Maximum number of queue names in a form."""


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """What was *found* by a look that ended *seconds* ago; *failure* says why nothing was."""

    seconds: float
    found: Sequence[T] = ()
    failure: str = ""


class Watch(Generic[T]):
    """Looks again in a thread while pages ask, at most every *every* seconds and a tenth of the time.

    What *look* returns is kept: no page waits for a later look, and for the first one, also after a pause of
    :data:`OLD_AFTER`, only :data:`FIRST_WAIT`.
    """

    def __init__(self, look: Callable[[], Sequence[T]], every: float) -> None:
        self._look, self._every = look, every
        self._lock = threading.Lock()
        self._seen: Seen[T] = Seen(0.0)
        self._seen_at: float | None = None
        self._next_at = 0.0
        self._thread: threading.Thread | None = None

    def last(self, *, again: bool = True) -> Seen[T] | None:
        """Return the last result; None if there is none yet, or an old one. Unless *again*, start no look."""
        if again:
            self._start()
        with self._lock:
            if self._seen_at is None or (again and self._is_old(self._seen_at)):
                return None
            return replace(self._seen, seconds=monotonic() - self._seen_at)

    def note(self, found: Sequence[T], failure: str = "") -> None:
        """Keep the result of a look."""
        with self._lock:
            self._seen, self._seen_at = Seen(0.0, found, failure), monotonic()

    def _start(self) -> None:
        with self._lock:
            if monotonic() < self._next_at:
                return
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="redis_queue-watch", daemon=True)
                self._thread.start()
            first = self._thread if self._seen_at is None or self._is_old(self._seen_at) else None
        if first is not None:
            first.join(FIRST_WAIT)

    def _is_old(self, seen_at: float) -> bool:
        return monotonic() > max(self._next_at, seen_at + self._every) + OLD_AFTER

    def _run(self) -> None:
        began = monotonic()
        try:
            self.note(self._look())
        except RedisQueueError as error:
            self.note((), hide_secrets(str(error)))
        except Exception:  # noqa: BLE001 - nobody else would see it
            _log.exception("cannot check the queues", extra={"action": "check_failed"})
            self.note((), "see the log of the dashboard")
        ended = monotonic()
        self._next_at = ended + max(self._every, (ended - began) * SHARE)


class Context:
    """Access to the queues of one dashboard, its time zone and audit log, the findings of the doctor, the incidents."""

    def __init__(self, access: Access, zone: tzinfo) -> None:
        self.access = access
        self.zone = zone
        self.audit = Audit(access.catalog.client, access.catalog.prefix)
        # A request to the workers would write to the broker.
        self.health = Watch(lambda: examine(access, ask=False), CHECK_EVERY)
        self.incidents = Watch(lambda: current(access), LOOK_EVERY)


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
    if name is None and access.app is None and access.default_delay_queue not in names:
        # Without any queue, an empty page is better than an error.
        queue = access.delay_queue(names[0]) if names else access.task_queue
    else:
        queue = access.delay_queue(name)
    return queue, sorted({*names, queue.name})
