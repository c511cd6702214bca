"""Claim batches of due entries; while a broker confirms one batch, claim and read the next (RabbitMQ only)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from redis_queue.celery.message.reading import Message, read_readable
from redis_queue.delay.model import Claimed
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import StoreError


@dataclass(frozen=True, slots=True)
class Claim:
    """Entries claimed at *at* on the monotonic clock; *messages* by entry id were read ahead."""

    claimed: Claimed
    at: float
    messages: Mapping[str, Message] = field(default_factory=dict)


class Claims:
    """Claims of one dispatcher, with at most one batch claimed ahead."""

    def __init__(self, queue: DelayQueue, batch: int) -> None:
        self._queue = queue
        self._batch = batch
        self._next: Claim | None = None
        self._more = False
        #: Whether :meth:`claim_ahead` may claim: only a run that continues can send the batch.
        self.may_claim_ahead = False

    @property
    def pending(self) -> bool:
        """Whether a batch was claimed ahead."""
        return self._next is not None

    def take(self, limit: int, *, within: float) -> Claim:
        """Return the batch that was claimed ahead, or else claim one."""
        claim, self._next = self._next or self._claim(limit, within), None
        self._more = claim.claimed.more
        return claim

    def claim_ahead(self) -> None:
        """Claim and read the next batch if there is more.

        Never raises: the current batch still waits for its confirms.
        """
        if self.may_claim_ahead and self._more and self._next is None:
            with contextlib.suppress(StoreError):
                self._next = self._claim(self._batch, 0)
                self._next = replace(self._next, messages=read_readable(self._next.claimed.entries))

    def give_back(self) -> None:
        """Give back the batch that was claimed ahead; if Redis is away, its lease ends by itself."""
        claim, self._next = self._next, None
        if claim is not None and claim.claimed.entries:
            with contextlib.suppress(StoreError):
                self._queue.release_many(claim.claimed.entries, reason="not sent: out of time", counted=False)

    def _claim(self, limit: int, within: float) -> Claim:
        at = time.monotonic()
        return Claim(self._queue.moves.claim_batch(limit, within=within), at)
