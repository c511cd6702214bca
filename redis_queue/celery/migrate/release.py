"""Release: send all waiting tasks to the broker, as stock workers take them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import redis
from celery import Celery

from redis_queue.admission.backlog import Backlog
from redis_queue.admission.flows import OF_QUEUE, route_of
from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import from_ms, monotonic
from redis_queue.celery.brokers.base import Broker, reason_of
from redis_queue.celery.brokers.open import BrokerUnavailableError, broker_of, unavailable_if_away
from redis_queue.celery.brokers.redis import RedisBroker
from redis_queue.celery.dispatch.delivery import Batch
from redis_queue.celery.kombu.keys import InFlightKeys
from redis_queue.celery.leases.connections import visibility_timeout_of
from redis_queue.celery.message.body import with_eta
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.celery.migrate import Progress
from redis_queue.celery.migrate.kombu_backlog import envelope_and_eta
from redis_queue.celery.store import Store
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidValueError, RedisQueueError
from redis_queue.model import Entry
from redis_queue.monitor.monitor import Workers
from redis_queue.schedules.store import ScheduleStore
from redis_queue.store.chunks import CHUNK
from redis_queue.store.codec import read_document
from redis_queue.store.scripts import Scripts, now_ms

logger = logger_of(__name__)

NAMED: Final = 5
"""Maximum number of workers that an error names."""


class NotReleasableError(RedisQueueError):
    """Tasks would run twice, or come back into the store."""


class Release:
    """Empties the store of *app*: sends every waiting task to the broker with its eta, a due task without.

    Messages that wait for a place in a flow, paused or not, go into their queues. Then the places, rates and keys of
    flows and unique tasks are deleted: nobody would free them.

    If store and broker are one Redis, each task moves in one atomic step. Elsewhere: claim, publish with confirm, ack;
    after a crash between publish and ack a task is published again, with the same task id. A task that the broker
    refuses stays stored, with its due time. Dispatchers and other releases may run at the same time. A crash leaves up
    to 500 tasks claimed; they come back when their leases end, or when they are due if that is later.

    Raises NotReleasableError, before it changes anything, while workers that take messages of flows report, and for
    tasks that are due later than kombu's visibility timeout unless *long_delays* is True: stock workers on Redis run
    them several times. Raises BrokerUnavailableError if the broker is away, StoreUnavailableError if the store is away.
    May be interrupted at any point.
    """

    def __init__(self, app: Celery, *, long_delays: bool = False) -> None:
        self._app = app
        self._store = Store.of(app)
        self._queue = self._store.delay_queue()
        self._long_delays = long_delays
        self._outcome = _Outcome(self._queue)
        self._scripts = Scripts(self._store.client)
        self._send = self._scripts.command
        self._keys = self._store.flow_keys
        self._backlog = Backlog(self._scripts, self._keys, self._store.clock)
        #: Number of messages that waited for a place in a flow and are in the broker now.
        self.from_flows = 0

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
        return {**self._outcome.reasons, **{id_: reason for id_, (_, reason) in self._outcome.refused.items()}}

    def find(self) -> Iterator[TaskEntry]:
        """Yield all waiting tasks, by due time. Changes nothing."""
        return map(TaskEntry.of, self._queue)

    def staying(self) -> int:
        """Count the tasks that are still stored: waiting, also in flows, or held by a dispatcher; no dead letters."""
        stats = self._queue.stats()
        return stats.waiting + stats.in_flight + self.in_flows()

    def in_flows(self) -> int:
        """Count the messages that wait for a place in a flow, or were taken there and not settled."""
        if not self._has_flows:
            return 0
        queues = (count for name, count in self._backlog.all().items() if name.startswith(OF_QUEUE))
        held = self._send("HLEN", InFlightKeys.under(self._keys.taken).unacked)
        return sum(queues) + int(held) + int(self._send("LLEN", self._keys.released))

    def dead(self) -> int:
        """Count dead letters and quarantined records; a release leaves them stored."""
        stats = self._queue.stats()
        return stats.dead + stats.quarantined

    def schedules(self) -> int:
        """Count the schedules; a release leaves them stored, and nobody sends them any more."""
        return ScheduleStore(self._queue).count()

    def run(self, progress: Progress = lambda _done, _all: None) -> None:
        """Release all waiting tasks."""
        try:
            with broker_of(self._app, self._queue.client) as broker:
                self._check(broker.connection)
                self._queue.put_back()
                self._empty(broker, self._queue.count(), progress)
                if self._has_flows:
                    self._empty_flows(broker)
        finally:
            self._outcome.give_back_refused()

    def refusal(self) -> str | None:
        """Return why :meth:`run` would refuse now; None if it would not."""
        try:
            with self._app.connection_for_write() as connection:
                self._check(connection)
        except NotReleasableError as error:
            return str(error)
        return None

    def _check(self, connection: Any) -> None:
        workers = Workers(self._store.client, self._store.prefix).rows() if self._has_flows else ()
        if names := [row.name for row in workers if row.keeper is not None]:
            raise NotReleasableError(
                f"{len(names)} workers with leases run, or were killed less than a minute ago: "
                f"{', '.join(names[:NAMED])}. They would take messages back into their flows: stop them, or restart "
                "them without redis_queue"
            )
        if self._long_delays or connection.transport.driver_type != "redis":
            return
        timeout = visibility_timeout_of(connection.transport_options)
        late = self._queue.count(
            due_after=from_ms(now_ms(self._scripts, self._store.clock)) + timedelta(seconds=timeout)
        )
        if late:
            raise NotReleasableError(
                f"{late:,} tasks are due later than visibility_timeout={timeout:g} s: stock workers would run them "
                "several times. Set broker_transport_options['visibility_timeout'] to more than the longest delay, "
                "restart all workers, and run this again; --long-delays releases them all the same"
            )

    @property
    def _has_flows(self) -> bool:
        # A Cluster has none.
        return isinstance(self._store.client, redis.Redis) and bool(self._send("EXISTS", self._keys.flags))

    def _empty_flows(self, broker: Broker) -> None:
        """Move the messages of flows into their queues, then delete what is known of flows and unique tasks."""
        if isinstance(broker, RedisBroker) and broker.shares_store:
            names = broker.names
            for count in self._backlog.move(lambda queue, step: (names.of_queue(queue, step), "")):
                self.from_flows += count
        else:
            for _ in self._backlog.move(lambda queue, _step: (self._keys.released, route_of(queue))):
                pass
            self._publish_records(broker)
        if not self.in_flows():
            keys = self._keys
            self._send("DEL", keys.running, keys.rates, keys.held)
            self._send("DEL", keys.owners, keys.owner_ids, keys.owner_ends, keys.replaced, keys.owned)

    def _publish_records(self, broker: Broker) -> None:
        """Publish what was moved, and what workers had taken from flows when they were killed."""
        keys = InFlightKeys.under(self._keys.taken)
        for tag in self._send("HKEYS", keys.unacked):
            if self._publish(broker, self._send("HGET", keys.unacked, tag)):
                self._send("HDEL", keys.unacked, tag)
                self._send("ZREM", keys.index, tag)
        for _ in range(int(self._send("LLEN", self._keys.released))):
            record = self._send("LINDEX", self._keys.released, -1)
            if record is None:
                # Another release has taken the rest.
                return
            if self._publish(broker, record):
                # By its value: if another release has removed it meanwhile, the last one is not published yet.
                self._send("LREM", self._keys.released, -1, record)
            else:
                self._send("RPOPLPUSH", self._keys.released, self._keys.released)

    def _publish(self, broker: Broker, record: bytes) -> bool:
        """Publish a message in kombu's record; return whether the broker has taken it."""
        reasons: list[str | None] = []
        id_ = "?"
        try:
            message, _, queue = read_document(record)
            envelope, _ = envelope_and_eta(self._app, message, queue)
            id_ = envelope.id
            with unavailable_if_away(broker):
                broker.publish([replace(envelope, exchange="", routing_key=queue)], lambda _, why: reasons.append(why))
        except BrokerUnavailableError:
            raise
        except Exception as error:  # noqa: BLE001 - one unreadable message must not stop the others
            reasons.append(reason_of(error))
        refused = next(filter(None, reasons), None)
        if refused is not None:
            self._outcome.reasons[id_] = refused
            return False
        self.from_flows += 1
        return True

    def _empty(self, broker: Broker, total: int, progress: Progress) -> None:
        more = True
        while more:
            claimed = self._queue.moves.claim_batch(CHUNK, early=True)
            new = [entry for entry in claimed.entries if not self._outcome.was_refused(entry)]
            if new:
                # After the end of a lease a dispatcher may hold the entry.
                until = monotonic() + self._queue.settings.lease_ms / 2000
                Batch(self._app, self._queue, broker, self._outcome).send(new, until=until)
            more = bool(new) or claimed.more
            progress(self.released, max(total, self.released))


class _Outcome:
    """What became of the tasks of one release. Refused tasks stay claimed, or each claim would return them again."""

    as_stored = False

    def __init__(self, queue: DelayQueue) -> None:
        self._queue = queue
        self.released = 0
        self.due = 0
        self.refused: dict[str, tuple[Entry, str]] = {}
        #: Of messages of flows.
        self.reasons: dict[str, str] = {}

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
        """Return whether *entry* was refused; then keep its new lease."""
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
        self._queue.nack_many(due, reason=reason, counted=False)
        for entry in entries:
            if not self._is_due(entry):
                # First too late, by as long as it was held, then exactly: never early.
                wait = entry.due_at - self._claimed_at(entry)
                if self._queue.nack(entry, delay=wait, reason=reason, counted=False):
                    self._queue.reschedule(entry.id, due_at=entry.due_at)

    def _is_due(self, entry: Entry) -> bool:
        return entry.due_at <= self._claimed_at(entry)

    def _claimed_at(self, entry: Entry) -> datetime:
        """Return when *entry* was claimed, by the clock of the store."""
        if entry.lease is None:
            raise InvalidValueError(f"{entry.id!r}: must be claimed")
        return entry.lease.expires_at - timedelta(milliseconds=self._queue.settings.lease_ms)
