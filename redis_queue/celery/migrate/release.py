"""Release: everything that waits in the store goes to the broker as Celery's own delayed tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from redis_queue.celery.brokers import Broker
from redis_queue.celery.brokers.outage import broker_of
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.protocol import with_eta
from redis_queue.celery.message.reading import envelope_of_entry
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.celery.store import Store
from redis_queue.errors import InvalidValueError
from redis_queue.logs import logger_of
from redis_queue.model import Entry
from redis_queue.store.chunks import CHUNK

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

Progress = Callable[[int, int], None]
"""Takes how many are done and how many there are."""

AT_ONCE: Final = 20
"""Messages between two looks at the time, where a broker does not say."""


class Release:
    """Empties the store of *app*: every waiting task goes to the broker with its own eta, one that is due without.

    At least once, as a dispatch: claim, publish with confirm, ack. What the broker does not take stays stored, due when
    it was due before. Dispatchers may run at the same time, and any number of releases. A crash leaves up to 500 tasks
    claimed; they come back when their leases end, or when they are due if that is later. What came back after a crash
    between publish and ack is published again with the same task id.

    Raises BrokerUnavailableError where the broker is away, StoreUnavailableError where the store is. May be interrupted
    at any point.
    """

    def __init__(self, app: Celery, *, progress: Progress | None = None) -> None:
        self._app = app
        self._queue = Store.of(app).delay_queue()
        self._progress = progress
        self._refused: dict[str, tuple[Entry, str]] = {}
        #: Tasks that the broker took.
        self.released = 0
        #: How many of them were due, so went without an eta.
        self.due = 0

    @property
    def refused(self) -> dict[str, str]:
        """What could not be released and stays stored: id and reason."""
        return {id_: reason for id_, (_, reason) in self._refused.items()}

    def find(self) -> Iterator[TaskEntry]:
        """Yield everything that waits, by due time. Changes nothing."""
        return map(TaskEntry.of, self._queue)

    def staying(self) -> int:
        """Count what is still stored: waiting, or held by a dispatcher. Dead letters are not among it."""
        stats = self._queue.stats()
        return stats.waiting + stats.in_flight

    def dead(self) -> int:
        """Count dead letters and what could not be read; they stay stored whatever is released."""
        stats = self._queue.stats()
        return stats.dead + stats.quarantined

    def run(self) -> None:
        """Release everything that waits."""
        try:
            with broker_of(self._app, self._queue.client) as broker:
                self._queue.put_back()
                self._empty(broker, self._queue.count())
        finally:
            for entry, reason in self._refused.values():
                self._give_back([entry], reason)

    def _empty(self, broker: Broker, total: int) -> None:
        more = True
        while more:
            claimed = self._queue.moves.claim_batch(CHUNK, early=True)
            # What was refused stays claimed until the end, or each claim would bring it again.
            new = [entry for entry in claimed.entries if not self._again(entry)]
            if new:
                self._send(broker, new)
            more = bool(new) or claimed.more
            if self._progress is not None:
                self._progress(self.released, max(total, self.released))

    def _again(self, entry: Entry) -> bool:
        if entry.id not in self._refused:
            return False
        self._refused[entry.id] = entry, self._refused[entry.id][1]
        return True

    def _send(self, broker: Broker, entries: Sequence[Entry]) -> None:
        # Past the end of a lease a dispatcher may hold the entry.
        stop_at = time.monotonic() + self._queue.settings.lease_ms / 2000
        left = {entry.id: entry for entry in entries}
        sent: list[Entry] = []
        try:
            ready = [(entry, envelope) for entry in entries if (envelope := self._message(broker, entry, left))]
            size = getattr(broker, "at_once", AT_ONCE)
            for start in range(0, len(ready), size):
                if time.monotonic() >= stop_at:
                    break
                self._publish(broker, ready[start : start + size], left, sent)
        finally:
            self._ack(sent)
            self._give_back(list(left.values()), "not released: the broker is away or slow")

    def _message(self, broker: Broker, entry: Entry, left: dict[str, Entry]) -> Envelope | None:
        try:
            envelope = envelope_of_entry(self._app, entry, broker.destinations)
            broker.check(entry, envelope)
            return envelope if self._is_due(entry) else with_eta(envelope, entry.due_at)
        except InvalidValueError as error:
            self._refuse(entry, str(error), left)
        except Exception as error:
            if broker.is_away(error):
                raise
            self._refuse(entry, f"{type(error).__name__}: {error}", left)
        return None

    def _publish(
        self, broker: Broker, ready: Sequence[tuple[Entry, Envelope]], left: dict[str, Entry], sent: list[Entry]
    ) -> None:
        def settle(number: int, why: str | None) -> None:
            entry = ready[number][0]
            if why is None:
                sent.append(left.pop(entry.id))
            else:
                self._refuse(entry, why, left)

        broker.publish([envelope for _, envelope in ready], settle)

    def _refuse(self, entry: Entry, why: str, left: dict[str, Entry]) -> None:
        logger.error("not released: %s", why, extra={"action": "release_refused", "entry_id": entry.id})
        self._refused[entry.id] = left.pop(entry.id), why

    def _ack(self, sent: Sequence[Entry]) -> None:
        flags = self._queue.ack_many(sent)
        self.released += len(sent)
        self.due += sum(map(self._is_due, sent))
        if not all(flags):
            logger.warning("%d leases ended before the ack", flags.count(False), extra={"action": "release_late"})

    def _give_back(self, entries: Sequence[Entry], reason: str) -> None:
        due = [entry for entry in entries if self._is_due(entry)]
        self._queue.release_many(due, reason=reason, counted=False)
        for entry in entries:
            if not self._is_due(entry):
                # First too late by as long as it was held, then to the millisecond: never early.
                wait = entry.due_at - self._claimed_at(entry)
                if self._queue.release(entry, delay=wait, reason=reason, counted=False):
                    self._queue.reschedule(entry.id, due_at=entry.due_at)

    def _is_due(self, entry: Entry) -> bool:
        return entry.due_at <= self._claimed_at(entry)

    def _claimed_at(self, entry: Entry) -> datetime:
        """Return when it was claimed, by the clock of the store."""
        if entry.lease is None:
            raise InvalidValueError(f"{entry.id!r} was looked at, not claimed: it has no lease")
        return entry.lease.expires_at - timedelta(milliseconds=self._queue.settings.lease_ms)
