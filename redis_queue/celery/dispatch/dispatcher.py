"""Dispatcher: send due entries to their Celery queues, batch by batch."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from redis_queue.celery.brokers import Broker
from redis_queue.celery.dispatch.claims import Claims
from redis_queue.celery.dispatch.delivery import Batch
from redis_queue.celery.dispatch.outcome import Dispatched, DispatchOutcome
from redis_queue.celery.dispatch.overdue import OverduePolicy
from redis_queue.celery.dispatch.reconnection import BrokerConnection
from redis_queue.celery.message.packing import PHRASES
from redis_queue.celery.settings import CelerySettings
from redis_queue.delay.queue import DelayQueue
from redis_queue.store.chunks import CHUNK, check_limit

if TYPE_CHECKING:
    from celery import Celery


class Dispatcher:
    """Moves due entries of *queue* into their Celery queues.

    If store and broker are one Redis, each message moves in one atomic step: never lost, never doubled. Elsewhere:
    claim, publish with confirm, ack; if a dispatcher dies in between, its entries are put back, and a later one
    publishes them again with the same task id. Any number may run at once. While the broker is away, entries stay
    stored; a message that cannot be sent becomes a dead letter after the queue's ``max_deliveries``.
    """

    def __init__(
        self, app: Celery, queue: DelayQueue, *, batch: int | None = None, settings: CelerySettings | None = None
    ) -> None:
        settings = settings or CelerySettings.of(app)
        self._app = app
        self._queue = queue
        self._batch = check_limit(settings.dispatch_batch if batch is None else batch, CHUNK, name="batch")
        self._broker = BrokerConnection(app, queue.client)
        self._claims = Claims(queue, self._batch)
        self._overdue = OverduePolicy(queue, settings.overdue_policy)
        self._claims_ahead = settings.overdue_policy.policy == "run"

    def run(self, budget: float = 30.0, *, due: bool = False) -> Dispatched:
        """Dispatch batch after batch until nothing is due or *budget* seconds have passed.

        With *due* the caller knows that something is due, which saves a look. Raises kombu's OperationalError if the
        broker is away; nothing is lost then.
        """
        total, stop_at = Dispatched(), time.monotonic() + budget
        self._claims.may_claim_ahead = self._claims_ahead
        try:
            while time.monotonic() < stop_at:
                done = self.run_once(due=due)
                total += done
                if not done.more and not self._claims.pending:
                    break
        finally:
            self._claims.may_claim_ahead = False
            self._claims.give_back()
        return total

    def run_once(self, *, due: bool = False) -> Dispatched:
        """Dispatch one batch; otherwise as :meth:`run`."""
        # A move tells when the next entry is due: then a look would be a second one.
        if not self._claims.pending and not (due and self._broker.shares_store):
            next_in = self._queue.moves.due_in()
            if next_in > 0:
                return Dispatched(next_in=next_in)
        return self._broker.use(self._dispatch)

    def close(self) -> None:
        """Close the connection to the broker; the next run opens another one."""
        self._broker.close()

    def _dispatch(self, broker: Broker) -> Dispatched:
        return self._overdue.dispatch(lambda limit, within: self._take(broker, limit, within), self._batch)

    def _take(self, broker: Broker, limit: int, within: float) -> Dispatched:
        """Move entries whose lists are known; deliver the others."""
        if not broker.shares_store:
            return self._deliver(broker, limit, within)
        lists = broker.lists_of_queues()
        moved = self._queue.moves.move(limit, within=within, phrases=PHRASES, lists=lists, passing=limit)
        done = Dispatched(moved.moved, 0, moved.next_in, moved.moved >= limit, moved.lateness, moved.worst)
        if not moved.passed:
            return done
        rest = self._deliver(broker, limit, within)
        return replace(done + rest, more=done.more or rest.more)

    def _deliver(self, broker: Broker, limit: int, within: float) -> Dispatched:
        claim = self._claims.take(limit, within=within)
        if not claim.claimed.entries:
            return Dispatched(next_in=0 if within else self._queue.moves.due_in())
        outcome = DispatchOutcome(self._queue, claim.at)
        broker.meanwhile = self._claims.claim_ahead
        # Half of the lease is left for a slow publish: after its end another dispatcher may hold the entries.
        until = claim.at + self._queue.settings.lease_ms / 2000
        batch = Batch(self._app, self._queue, broker, outcome)
        batch.send(claim.claimed.entries, until=until, messages=claim.messages)
        return replace(outcome.result(), next_in=0, more=claim.claimed.more)
