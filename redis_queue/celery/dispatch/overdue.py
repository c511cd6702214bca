"""Policy for overdue entries: send them all, spread them over time, or make dead letters of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from redis_queue.celery.dispatch.outcome import Dispatched
from redis_queue.celery.settings import Overdue
from redis_queue.delay.queue import DelayQueue

FRESH: Final = 1.0
"""Seconds for which a due entry is not yet overdue."""

Take = Callable[[int, float], Dispatched]
"""Dispatches at most so many entries that fell due within so many seconds (0: at any time)."""


class OverduePolicy:
    """Apply ``redis_queue_overdue`` to the dispatches of one dispatcher."""

    def __init__(self, queue: DelayQueue, overdue: Overdue) -> None:
        self._queue = queue
        self._overdue = overdue
        self._allowance = Allowance(overdue.amount)

    def dispatch(self, take: Take, batch: int) -> Dispatched:
        """Dispatch up to *batch* entries by *take*; overdue entries as the policy says."""
        policy, amount = self._overdue.policy, self._overdue.amount
        if policy == "skip":
            self._queue.moves.bury_overdue(amount, reason=f"overdue by more than {amount:g} s")
        return self._spread(take, batch) if policy == "spread" else take(batch, 0)

    def _spread(self, take: Take, batch: int) -> Dispatched:
        done = take(batch, FRESH)
        allowed = self._allowance.take(batch)
        if allowed:
            late = take(allowed, 0)
            taken = late.sent + late.failed
            self._allowance.spend(taken)
            # If the allowance is used up, the rest has to wait.
            spent = allowed < batch and taken >= allowed
            done = replace(done + late, more=done.more or (late.more and not spent))
        return replace(done, next_in=min(max(done.next_in, 0.1), FRESH))


class Allowance:
    """How many overdue entries may be sent now, at *rate* per second."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._left = 0.0
        self._at = -math.inf

    def take(self, limit: int) -> int:
        """Return how many of *limit* may be sent now."""
        now = time.monotonic()
        self._left = min(max(1.0, self._rate), self._left + (now - self._at) * self._rate)
        self._at = now
        return min(limit, int(self._left))

    def spend(self, count: int) -> None:
        """Subtract *count* entries that were sent."""
        self._left -= count
