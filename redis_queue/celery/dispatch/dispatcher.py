"""Dispatcher: due entries become messages in normal Celery queues."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kombu.exceptions import OperationalError

from redis_queue.celery.brokers import Broker, open_broker
from redis_queue.celery.brokers.base import only_wait
from redis_queue.celery.dispatch.delivery import AwayError, Batch, Dispatched
from redis_queue.celery.dispatch.overdue import Allowance
from redis_queue.celery.message.packing import PHRASES
from redis_queue.celery.settings import CelerySettings, Overdue
from redis_queue.delay.model import Claimed
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import StoreError
from redis_queue.logs import logger_of
from redis_queue.store.chunks import CHUNK, check_limit

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

FRESH: Final = 1.0
"""Seconds for which a due entry is not yet overdue: the overdue policy is about what came before."""


class Dispatcher:
    """Moves due entries of *queue* into the Celery queues that they name.

    Where store and broker are one Redis, each message moves in one atomic step: never lost, never doubled. Elsewhere:
    claim, publish with confirm, ack; a dispatcher that dies in between leaves its entries to put-back, and a later one
    publishes them again with the same task id. Any number may run at once. While the broker is away entries stay
    stored; a message that cannot be sent becomes a dead letter after the queue's ``max_deliveries``.
    """

    def __init__(
        self, app: Celery, queue: DelayQueue, *, batch: int | None = None, settings: CelerySettings | None = None
    ) -> None:
        self._broker: Broker | None = None
        self._app = app
        self._queue = queue
        settings = settings or CelerySettings.of(app)
        self._batch = check_limit(settings.dispatch_batch if batch is None else batch, CHUNK, name="batch")
        self._overdue: Overdue = settings.overdue_policy
        self._allowance = Allowance(self._overdue.amount if self._overdue.policy == "spread" else None)
        self._ahead: _Claim | None = None
        self._goes_on = False

    def run(self, budget: float = 30.0, *, due: bool = False) -> Dispatched:
        """Dispatch batch after batch until nothing is due or *budget* seconds have passed.

        *due* tells that something is, which saves a look.
        """
        total, stop_at = Dispatched(), time.monotonic() + budget
        self._goes_on = self._overdue.policy == "run"
        try:
            while time.monotonic() < stop_at:
                done = self.run_once(due=due)
                total += done
                if self._ahead is None and not done.more:
                    break
        finally:
            self._goes_on = False
            self._give_back()
        return total

    def run_once(self, *, due: bool = False) -> Dispatched:
        """Dispatch one batch. Raises kombu's OperationalError if the broker is away; nothing is lost then."""
        # Where a move tells as much, it is the look.
        if self._ahead is None and (not due or self._broker is None or not self._broker.shares_store):
            next_in = self._queue.moves.due_in()
            if next_in > 0:
                return Dispatched(next_in=next_in)
        try:
            return self._dispatch()
        except AwayError:
            # A connection may have died while the broker is well: once more, on a new one.
            self.close()
            return self._dispatch_again()
        except BaseException:
            self.close()
            raise

    def _dispatch_again(self) -> Dispatched:
        try:
            return self._dispatch()
        except AwayError as away:
            error = away.__cause__
            raise OperationalError(str(error)) from error
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection to the broker; the next run opens another one."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.close()

    def __del__(self) -> None:
        # Whatever a dead connection answers, nobody is left to hear it.
        with contextlib.suppress(Exception):
            self.close()

    def _dispatch(self) -> Dispatched:
        if self._overdue.policy == "skip":
            self._queue.moves.bury_overdue(
                self._overdue.amount, reason=f"overdue by more than {self._overdue.amount:g} s"
            )
        if self._overdue.policy != "spread":
            return self._take(self._batch, within=0)
        done = self._take(self._batch, within=FRESH)
        allowed = self._allowance.take(self._batch)
        if allowed:
            late = self._take(allowed, within=0)
            self._allowance.spend(late.sent + late.failed)
            # If the allowance is used up, the rest has to wait.
            spent = allowed < self._batch and late.sent + late.failed >= allowed
            done = replace(done + late, more=done.more or (late.more and not spent))
        return replace(done, next_in=min(max(done.next_in, 0.1), FRESH))

    def _take(self, limit: int, *, within: float) -> Dispatched:
        broker = self._broker = self._broker or open_broker(self._app, self._queue.client)
        done = Dispatched()
        if broker.shares_store:
            lists = broker.lists_of_queues()
            moved = self._queue.moves.move(limit, within=within, phrases=PHRASES, lists=lists, passing=limit)
            done = Dispatched(moved.moved, 0, moved.next_in, moved.moved >= limit, moved.lateness, moved.worst)
            if not moved.passed:
                return done
        claim, self._ahead = self._ahead or self._claim(limit, within), None
        if not claim.claimed.entries:
            return replace(done, next_in=0 if within else self._queue.moves.due_in())
        broker.meanwhile = self._claim_ahead if self._goes_on and claim.claimed.more else only_wait
        done += Batch(self._app, self._queue, broker, claim.stop_at).dispatch(claim.claimed.entries)
        return replace(done, next_in=0, more=claim.claimed.more)

    def _claim(self, limit: int, within: float) -> _Claim:
        # Half of the lease is left for a slow publish: past its end another dispatcher may hold the entry.
        stop_at = time.monotonic() + self._queue.settings.lease_ms / 2000
        return _Claim(self._queue.moves.claim_batch(limit, within=within), stop_at)

    def _claim_ahead(self) -> None:
        """Claim the next batch. Raises nothing: the batch that is under way has yet to hear its confirms."""
        if self._ahead is None:
            with contextlib.suppress(StoreError):
                self._ahead = self._claim(self._batch, 0)

    def _give_back(self) -> None:
        """Give back what was claimed for a batch that will not come; where Redis is away, its lease ends."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.claimed.entries:
            with contextlib.suppress(StoreError):
                self._queue.release_many(ahead.claimed.entries, reason="not sent: out of time", counted=False)


@dataclass(frozen=True, slots=True)
class _Claim:
    """Claimed entries, to be sent before *stop_at* of the monotonic clock."""

    claimed: Claimed
    stop_at: float
