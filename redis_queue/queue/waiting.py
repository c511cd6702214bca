"""Claim messages, and wait for them while the queue is empty or Redis is away."""

from __future__ import annotations

import math
import os
import time
from typing import Any, Final

from redis_queue.backoff import Backoff
from redis_queue.errors import RedisQueueError, StoreUnavailableError
from redis_queue.logs import logger_of
from redis_queue.model import Lease, Message
from redis_queue.queue.heartbeat import Heartbeat
from redis_queue.queue.replies import read_message
from redis_queue.store.chunks import CHUNK
from redis_queue.store.records import Records
from redis_queue.store.scripts import Scripts
from redis_queue.store.settings import Settings
from redis_queue.times import Seconds, duration_ms, from_ms

logger = logger_of(__name__)

SHORTEST_WAIT: Final = 0.005
"""Redis 6.2 cuts a timeout of a millisecond to 0, which means for ever."""


class Claims:
    """Claim messages of one RedisQueue. *longest_wait*: most seconds of one command that blocks."""

    def __init__(self, records: Records, scripts: Scripts, settings: Settings, longest_wait: float) -> None:
        self._records = records
        self._scripts = scripts
        self._lease_ms = settings.lease_ms
        self._put_back_limit = settings.put_back_on_get
        self._poll = settings.poll_seconds
        self._longest_wait = longest_wait

    def get(self, limit: int, *, block: bool, timeout: Seconds | None) -> list[Message]:
        """Claim up to *limit* messages; with *block*, wait for the first one, for *timeout* at most."""
        deadline = _deadline(timeout)
        backoff = Backoff()
        while True:
            try:
                messages, next_in = self._claim(limit)
                if messages or not block:
                    return messages
                left = deadline - time.monotonic()
                if left <= 0:
                    return []
                self._wait(min(next_in, self._poll, left, self._longest_wait))
                backoff.reset()
            except StoreUnavailableError as error:
                if not block or deadline <= time.monotonic():
                    raise
                _pause(error, backoff, deadline)

    def ack_and_get(self, message: Message, heartbeat: Heartbeat, timeout: Seconds | None) -> Message | None:
        """Finish *message* however long Redis is away, for *timeout* at most; claim the next one if one is ready."""
        try:
            return self._ack_and_claim(message)
        except StoreUnavailableError as error:
            away = error
        # The outcome of the ack is unknown: until it is known, nobody else may get the message.
        heartbeat.add(message)
        deadline, backoff = _deadline(timeout), Backoff()
        while True:
            _pause(away, backoff, deadline)
            try:
                self._records.ack([message])
            except StoreUnavailableError as error:
                if deadline <= time.monotonic():
                    raise
                away = error
            else:
                heartbeat.remove(message)
                return None

    def _ack_and_claim(self, message: Message) -> Message | None:
        """Finish *message* and claim the next ready one in one round trip."""
        accepted, reply = self._records.ack_and(message, "queue/get", **self._arguments(1))
        if not accepted:
            logger.warning("the lease was lost", extra={"action": "lease_lost", "message_id": message.id})
        messages, _ = self._claim(1, reply)
        return messages[0] if messages else None

    def _claim(self, limit: int, reply: Any = None) -> tuple[list[Message], float]:
        """Claim once, or read *reply*; if nothing was ready but something is due, move that and claim again."""
        messages, next_in = self._claim_once(limit, reply)
        if next_in > 0:
            return messages, next_in
        try:
            moved = self._maintain()
        except RedisQueueError as error:
            if not messages:
                raise
            # Claimed messages must reach the caller even if the maintenance failed.
            logger.warning("cannot put back: %s", error, extra={"action": "put_back_failed"})
            return messages, self._poll
        if not messages and moved:
            messages, _ = self._claim_once(limit)
        return messages, self._poll

    def _claim_once(self, limit: int, reply: Any = None) -> tuple[list[Message], float]:
        """Return the claimed messages, and the seconds until a delayed message or an expired lease needs a look."""
        while True:
            token, expires, next_in, *found = reply or self._records.call("queue/get", **self._arguments(limit))
            reply = None
            wait = math.inf if next_in < 0 else next_in / 1000
            if not found and token != b"+":
                return [], wait
            lease = Lease(token.decode(), from_ms(expires))
            fields = iter(found)
            rows = zip(fields, fields, fields, strict=True)
            read = [read_message(self._records, row, lease) for row in rows]
            if messages := [message for message in read if message is not None]:
                return messages, wait

    def _arguments(self, limit: int) -> dict[str, Any]:
        return {"now": self._records.clock(), "lease": self._lease_ms, "limit": limit, "nonce": os.urandom(8).hex()}

    def _maintain(self) -> bool:
        """Make due messages ready and put back expired leases; return whether that moved any."""
        moved = self._records.run("queue/promote", now=self._records.clock(), limit=CHUNK)
        if self._put_back_limit:
            moved += self._records.put_back(self._put_back_limit).returned
        return bool(moved)

    def _wait(self, seconds: float) -> None:
        # Blocks on the wake-up token, never on messages: a token lost with its consumer costs one poll interval.
        self._scripts.command("BLPOP", self._records.keys.wake, max(seconds, SHORTEST_WAIT))


def _deadline(timeout: Seconds | None) -> float:
    return math.inf if timeout is None else time.monotonic() + duration_ms(timeout, name="timeout") / 1000


def _pause(error: StoreUnavailableError, backoff: Backoff, deadline: float) -> None:
    pause = max(0.0, min(backoff.next(), deadline - time.monotonic()))
    logger.warning("Redis is away: %s", error, extra={"action": "store_unavailable", "retry_in": pause})
    time.sleep(pause)
