"""Release: send all waiting tasks to the broker as Celery's own delayed tasks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from redis_queue.celery.brokers import Broker
from redis_queue.celery.brokers.outage import broker_of
from redis_queue.celery.dispatch.delivery import Batch
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.protocol import with_eta
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.celery.migrate import Progress
from redis_queue.celery.store import Store
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidValueError
from redis_queue.logs import logger_of
from redis_queue.model import Entry
from redis_queue.store.chunks import CHUNK

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)


class Release:
    """Empties the store of *app*: sends every waiting task to the broker with its eta, a due task without.

    If store and broker are one Redis, each task moves in one atomic step. Elsewhere: claim, publish with confirm, ack;
    after a crash between publish and ack a task is published again, with the same task id. A task that the broker
    refuses stays stored, with its due time. Dispatchers and other releases may run at the same time. A crash leaves up
    to 500 tasks claimed; they come back when their leases end, or when they are due if that is later.

    Raises BrokerUnavailableError if the broker is away, StoreUnavailableError if the store is away. May be interrupted
    at any point.
    """

    def __init__(self, app: Celery, *, progress: Progress | None = None) -> None:
        self._app = app
        self._queue = Store.of(app).delay_queue()
        self._progress = progress
        self._outcome = _Outcome(self._queue)

    @property
    def released(self) -> int:
        """Number of tasks that the broker has taken."""
        return self._outcome.released

    @property
    def due(self) -> int:
        """Number of released tasks that were due, so were sent without an eta."""
        return self._outcome.due

    @property
    def refused(self) -> dict[str, str]:
        """Tasks that could not be released and stay stored: id and reason."""
        return {id_: reason for id_, (_, reason) in self._outcome.refused.items()}

    def find(self) -> Iterator[TaskEntry]:
        """Yield all waiting tasks, by due time. Changes nothing."""
        return map(TaskEntry.of, self._queue)

    def staying(self) -> int:
        """Count the tasks that are still stored: waiting, or held by a dispatcher; without dead letters."""
        stats = self._queue.stats()
        return stats.waiting + stats.in_flight

    def dead(self) -> int:
        """Count dead letters and quarantined records; a release leaves them stored."""
        stats = self._queue.stats()
        return stats.dead + stats.quarantined

    def run(self) -> None:
        """Release all waiting tasks."""
        try:
            with broker_of(self._app, self._queue.client) as broker:
                self._queue.put_back()
                self._empty(broker, self._queue.count())
        finally:
            self._outcome.give_back_refused()

    def _empty(self, broker: Broker, total: int) -> None:
        more = True
        while more:
            claimed = self._queue.moves.claim_batch(CHUNK, early=True)
            new = [entry for entry in claimed.entries if not self._outcome.was_refused(entry)]
            if new:
                # After the end of a lease a dispatcher may hold the entry.
                until = time.monotonic() + self._queue.settings.lease_ms / 2000
                Batch(self._app, self._queue, broker, self._outcome).send(new, until=until)
            more = bool(new) or claimed.more
            if self._progress is not None:
                self._progress(self.released, max(total, self.released))


class _Outcome:
    """What became of the tasks of one release. Refused tasks stay claimed, or each claim would return them again."""

    as_stored = False

    def __init__(self, queue: DelayQueue) -> None:
        self._queue = queue
        self.released = 0
        self.due = 0
        self.refused: dict[str, tuple[Entry, str]] = {}

    def message(self, entry: Entry, envelope: Envelope) -> Envelope:
        return envelope if self._is_due(entry) else with_eta(envelope, entry.due_at)

    def begin(self, entry: Entry, envelope: Envelope | None = None) -> None:
        pass

    def sent(self, entry: Entry) -> None:
        self.released += 1
        self.due += self._is_due(entry)

    def lost(self, entry: Entry) -> None:
        extra = {"action": "release_late", "entry_id": entry.id}
        logger.warning("lost the lease of %s: a dispatcher may send it as well", entry.id, extra=extra)

    def refuse(self, entry: Entry, why: str, error: Exception | None = None) -> None:  # noqa: ARG002
        logger.error("not released: %s", why, extra={"action": "release_refused", "entry_id": entry.id})
        self.refused[entry.id] = entry, why

    def was_refused(self, entry: Entry) -> bool:
        """Tell whether *entry* was refused; then keep its new lease."""
        if entry.id not in self.refused:
            return False
        self.refused[entry.id] = entry, self.refused[entry.id][1]
        return True

    def end(self, left: Sequence[Entry]) -> None:
        self._give_back(left, "not released: the broker is away or slow")

    def give_back_refused(self) -> None:
        for entry, reason in self.refused.values():
            self._give_back([entry], reason)

    def _give_back(self, entries: Sequence[Entry], reason: str) -> None:
        due = [entry for entry in entries if self._is_due(entry)]
        self._queue.release_many(due, reason=reason, counted=False)
        for entry in entries:
            if not self._is_due(entry):
                # First too late, by as long as it was held, then exactly: never early.
                wait = entry.due_at - self._claimed_at(entry)
                if self._queue.release(entry, delay=wait, reason=reason, counted=False):
                    self._queue.reschedule(entry.id, due_at=entry.due_at)

    def _is_due(self, entry: Entry) -> bool:
        return entry.due_at <= self._claimed_at(entry)

    def _claimed_at(self, entry: Entry) -> datetime:
        """Return when *entry* was claimed, by the clock of the store."""
        if entry.lease is None:
            raise InvalidValueError(f"{entry.id!r}: must be claimed")
        return entry.lease.expires_at - timedelta(milliseconds=self._queue.settings.lease_ms)
