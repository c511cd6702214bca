"""What dispatching did: counts and lateness, what becomes of refused entries, and the report of it in Redis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from redis_queue.basics.histogram import Histogram
from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import monotonic
from redis_queue.basics.waits import retry_delay
from redis_queue.celery.message.envelope import Envelope, UnknownVersionError
from redis_queue.celery.tracing import DispatchSpans
from redis_queue.delay.dispatch_log import DispatcherRow
from redis_queue.delay.model import Dispatched
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidValueError, RedisQueueError
from redis_queue.model import Entry

logger = logger_of(__name__)

UNKNOWN_WAIT: Final = 60.0
"""Seconds until an entry of a later version is tried again."""

BUSY: Final = 1.0
"""Seconds between two writes while entries are dispatched; a crash loses the counts of this time."""

IDLE: Final = 10.0
"""Seconds between two signs of life."""


class DispatchOutcome:
    """What becomes of one batch that is dispatched; entries were claimed at *claimed_at* on the monotonic clock.

    A refused entry is retried later, and is a dead letter after ``max_deliveries``, or at once if it is invalid.
    """

    as_stored = True

    def __init__(self, queue: DelayQueue, claimed_at: float) -> None:
        self._queue = queue
        self._claimed_at = claimed_at
        self._spans = DispatchSpans()
        self._late_ms: list[float] = []
        self._failed = 0
        self._refused: dict[str, list[str]] = {}

    def result(self, *, more: bool) -> Dispatched:
        """Return the counts; *more*: more entries may be due."""
        late = self._late_ms
        return Dispatched(sent=len(late), failed=self._failed, lateness=Histogram.of(late), next_in=0, more=more)

    def message(self, entry: Entry, envelope: Envelope) -> Envelope:  # noqa: ARG002 - it goes as it was stored
        return envelope

    def begin(self, entry: Entry, envelope: Envelope | None = None) -> None:
        """Begin the span of *entry*."""
        self._spans.begin(entry, envelope)

    def sent(self, entry: Entry) -> None:
        """Count *entry* and its lateness: by the server's clock up to the claim, by this host's clock after it."""
        self._spans.end(entry)
        lease_ends = entry.due_at if entry.lease is None else entry.lease.expires_at
        at_claim = (lease_ends - entry.due_at).total_seconds() * 1000 - self._queue.settings.lease_ms
        self._late_ms.append(max(0.0, at_claim) + max(0.0, monotonic() - self._claimed_at) * 1000)

    def lost(self, entry: Entry) -> None:
        """End the span of *entry* with an error, unless its message was sent."""
        self._spans.end(entry, "its lease was lost")

    def refuse(self, entry: Entry, why: str, error: Exception | None = None) -> None:
        """Retry *entry* later, or make it a dead letter; an entry of a later version waits for a newer dispatcher."""
        if isinstance(error, UnknownVersionError):
            extra = {"action": "dispatch_unknown", "entry_id": entry.id}
            logger.warning("entry %s is left for a newer version: %s", entry.id, why, extra=extra)
            self._queue.nack(entry, delay=UNKNOWN_WAIT, counted=False)
            return
        invalid = isinstance(error, InvalidValueError)
        if error is not None and not invalid:
            extra = {"action": "dispatch_failed", "entry_id": entry.id}
            logger.error("cannot send entry %s", entry.id, exc_info=error, extra=extra)
        self._refused.setdefault(why, []).append(entry.id)
        self._failed += 1
        self._spans.end(entry, why)
        self._queue.nack(entry, delay=retry_delay(entry.deliveries), reason=why, dead=invalid)

    def end(self, left: Sequence[Entry]) -> None:
        """Give *left* back uncounted, and log the refused entries: one line per reason, as they may be thousands."""
        self._queue.nack_many(left, reason="not sent: the broker is away or slow", counted=False)
        for why, ids in self._refused.items():
            several = f" ({len(ids)} entries)" if len(ids) > 1 else ""
            fields = {"action": "dispatch_refused", "entry_id": ids[0], "count": len(ids)}
            logger.error("not sent: %s%s", why, several, extra=fields)


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
        return max(0.0, self._written_at + (BUSY if busy else IDLE) - monotonic())

    def write(self, *, leads: bool, at_once: bool = False) -> None:
        """Write if it is time; with *at_once*, if there is anything to write."""
        if self.due_in() <= 0 or (at_once and self._unwritten != Dispatched()):
            self._send(leads=leads, leaving=False)

    def leave(self) -> None:
        """Write the rest, and remove this dispatcher from the list."""
        self._send(leads=False, leaving=True)

    def _send(self, *, leads: bool, leaving: bool) -> None:
        self._written_at = monotonic()
        try:
            self._queue.dispatch_log.note(self._unwritten, dispatcher=self._row(leads=leads), leaving=leaving)
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
