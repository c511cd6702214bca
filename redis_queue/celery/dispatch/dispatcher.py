"""Dispatcher: send due entries to their Celery queues, batch by batch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from celery import Celery
from kombu.exceptions import OperationalError

from redis_queue.basics.times import monotonic
from redis_queue.celery.brokers.base import Broker, WhileWaiting, do_nothing
from redis_queue.celery.brokers.open import BrokerUnavailableError, open_broker
from redis_queue.celery.dispatch.delivery import Batch
from redis_queue.celery.dispatch.outcome import DispatchOutcome
from redis_queue.celery.message.entry import Content, readable_contents
from redis_queue.celery.message.envelope import PHRASES
from redis_queue.celery.settings import CelerySettings
from redis_queue.delay.model import Claim, Dispatched
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import StoreError
from redis_queue.store.chunks import CHUNK, check_limit
from redis_queue.store.connection import Client

FRESH: Final = 1.0
"""Seconds for which a due entry is not yet overdue."""

Result = TypeVar("Result")


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
        self._claims = BatchClaims(queue, self._batch)
        self._overdue = settings.overdue_policy
        self._allowance = Allowance(self._overdue.amount)

    def run(self, budget: float = 30.0, *, due: bool = False) -> Dispatched:
        """Dispatch batch after batch until nothing is due or *budget* seconds have passed.

        With *due* the caller knows that something is due, which saves a look. Raises kombu's OperationalError if the
        broker is away; nothing is lost then.
        """
        total = done = Dispatched()
        stop_at = monotonic() + budget
        # Only a run that goes on can send a batch that was claimed ahead.
        while_waiting = self._claims.claim_ahead if self._overdue.policy == "run" else do_nothing
        try:
            while monotonic() < stop_at:
                done = self._run_once(due=due, while_waiting=while_waiting)
                total += done
                if not done.more and not self._claims.pending:
                    break
        finally:
            self._claims.give_back()
        return replace(total, next_in=done.next_in, more=done.more)

    def run_once(self, *, due: bool = False) -> Dispatched:
        """Dispatch one batch; otherwise as :meth:`run`."""
        return self._run_once(due=due, while_waiting=do_nothing)

    def _run_once(self, *, due: bool, while_waiting: WhileWaiting) -> Dispatched:
        # A move also returns when the next entry is due, so that a check before it would be redundant.
        if not self._claims.pending and not (due and self._broker.shares_store):
            next_in = self._queue.moves.due_in()
            if next_in > 0:
                return Dispatched(next_in=next_in)
        return self._broker.use(partial(self._dispatch, while_waiting))

    def close(self) -> None:
        """Close the connection to the broker; the next run opens another one."""
        self._broker.close()

    def _dispatch(self, while_waiting: WhileWaiting, broker: Broker) -> Dispatched:
        """Dispatch a batch; overdue entries as the setting ``redis_queue_overdue`` says."""
        policy, amount = self._overdue.policy, self._overdue.amount
        if policy == "skip":
            self._queue.moves.bury_overdue(amount, reason=f"overdue by more than {amount:g} s")
        return self._spread(broker) if policy == "spread" else self._take(broker, self._batch, 0, while_waiting)

    def _spread(self, broker: Broker) -> Dispatched:
        done = last = self._take(broker, self._batch, FRESH)
        allowed = self._allowance.take(self._batch)
        if allowed:
            last = self._take(broker, allowed, 0)
            taken = last.sent + last.failed
            self._allowance.left -= taken
            # If the allowance is used up, the rest has to wait.
            spent = allowed < self._batch and taken >= allowed
            done += replace(last, more=last.more and not spent)
        return replace(done, next_in=min(max(last.next_in, 0.1), FRESH))

    def _take(self, broker: Broker, limit: int, within: float, while_waiting: WhileWaiting = do_nothing) -> Dispatched:
        """Move up to *limit* entries that fell due *within* some seconds (0: at any time), and whose lists are known.

        The others are delivered.
        """
        if not broker.shares_store:
            return self._deliver(broker, limit, within, while_waiting)
        lists = broker.lists_of_queues()
        done = self._queue.moves.move(limit, within=within, phrases=PHRASES, lists=lists, passing=limit)
        return done + self._deliver(broker, limit, within, while_waiting) if done.passed else done

    def _deliver(self, broker: Broker, limit: int, within: float, while_waiting: WhileWaiting) -> Dispatched:
        batch = self._claims.take(limit, within=within)
        if not batch.claim.entries:
            return Dispatched(next_in=0 if within else self._queue.moves.due_in())
        outcome = DispatchOutcome(self._queue, batch.claimed_at)
        # Half of the lease is left for a slow publish: after its end another dispatcher may hold the entries.
        until = batch.claimed_at + self._queue.settings.lease_ms / 2000
        delivery = Batch(self._app, self._queue, broker, outcome, while_waiting=while_waiting)
        delivery.send(batch.claim.entries, until=until, messages=batch.messages)
        return outcome.result(more=batch.claim.more)


@dataclass(frozen=True, slots=True)
class ClaimedBatch:
    """A claim that was made at *claimed_at* on the monotonic clock; *messages* by entry id were read ahead."""

    claim: Claim
    claimed_at: float
    messages: Mapping[str, Content] = field(default_factory=dict)


class BatchClaims:
    """Claims of one dispatcher, with at most one batch claimed ahead."""

    def __init__(self, queue: DelayQueue, batch: int) -> None:
        self._queue = queue
        self._batch = batch
        self._next: ClaimedBatch | None = None
        self._more = False

    @property
    def pending(self) -> bool:
        """Whether a batch was claimed ahead."""
        return self._next is not None

    def take(self, limit: int, *, within: float) -> ClaimedBatch:
        """Return the batch that was claimed ahead, or else claim one."""
        batch, self._next = self._next or self._claim(limit, within), None
        self._more = batch.claim.more
        return batch

    def claim_ahead(self) -> None:
        """Claim and read the next batch if there is more.

        Never raises: the current batch still waits for its confirms.
        """
        if self._more and self._next is None:
            with contextlib.suppress(StoreError):
                self._next = self._claim(self._batch, 0)
                self._next = replace(self._next, messages=readable_contents(self._next.claim.entries))

    def give_back(self) -> None:
        """Give back the batch that was claimed ahead; if Redis is away, its lease ends by itself."""
        batch, self._next = self._next, None
        if batch is not None and batch.claim.entries:
            with contextlib.suppress(StoreError):
                self._queue.nack_many(batch.claim.entries, reason="not sent: out of time", counted=False)

    def _claim(self, limit: int, within: float) -> ClaimedBatch:
        at = monotonic()
        return ClaimedBatch(self._queue.moves.claim_batch(limit, within=within), at)


class Allowance:
    """How many overdue entries may be sent now, at *rate* per second."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.left = 0.0
        self._at = -math.inf

    def take(self, limit: int) -> int:
        """Return how many of *limit* may be sent now."""
        now = monotonic()
        self.left = min(max(1.0, self._rate), self.left + (now - self._at) * self._rate)
        self._at = now
        return min(limit, int(self.left))


class BrokerConnection:
    """A connection to the broker of *app*, opened at its first use and after each failure."""

    def __init__(self, app: Celery, store: Client) -> None:
        self._app = app
        self._store = store
        self._broker: Broker | None = None

    @property
    def shares_store(self) -> bool:
        """Whether the broker is known to be the Redis of the store."""
        return self._broker is not None and self._broker.shares_store

    def use(self, work: Callable[[Broker], Result]) -> Result:
        """Call *work* with the broker; again with a new connection if this one is dead, as the broker may be well.

        Raises kombu's OperationalError if the broker is away.
        """
        with contextlib.suppress(BrokerUnavailableError):
            return self._use(work)
        try:
            return self._use(work)
        except BrokerUnavailableError as away:
            raise OperationalError(str(away.__cause__)) from away.__cause__

    def _use(self, work: Callable[[Broker], Result]) -> Result:
        try:
            self._broker = self._broker or open_broker(self._app, self._store)
            return work(self._broker)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.close()

    def __del__(self) -> None:
        # Nobody is left to handle the errors of a dead connection.
        with contextlib.suppress(Exception):
            self.close()
