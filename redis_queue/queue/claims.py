"""Claim messages, wait for them while the queue is empty or Redis is away, and read the replies of scripts."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from redis_queue.basics.logs import OutageLog, logger_of
from redis_queue.basics.times import Seconds, duration_ms, from_ms, monotonic
from redis_queue.basics.waits import Backoff, sleep
from redis_queue.errors import RedisQueueError, StoreError
from redis_queue.model import Lease, Message, QueueStats, Unread
from redis_queue.queue.heartbeat import Heartbeat
from redis_queue.store.chunks import CHUNK, rows_of
from redis_queue.store.ids import id_text
from redis_queue.store.records import Records, read_flags
from redis_queue.store.redis_errors import is_outage
from redis_queue.store.scripts import Scripts
from redis_queue.store.settings import Settings

MIN_WAIT: Final = 0.005
"""Redis 6.2 cuts a timeout of a millisecond to 0, which means forever."""


def read_message(records: Records, row: Sequence[Any], lease: Lease | None) -> Message | None:
    """Return the message of *row* (id, deliveries, record), None if it is unreadable.

    An unreadable message with a *lease* goes to quarantine. A record that is an integer was left in Redis: its size.
    """
    raw_id, deliveries, record = row
    id_ = id_text(raw_id)
    if isinstance(record, int):
        return Message(id_, Unread(record), {}, from_ms(0), deliveries, lease)
    found = records.decode(id_, record, lease)
    if found is None:
        return None
    return Message(id_, found.body, found.headers, from_ms(found.put_at), deliveries, lease)


def read_stats(reply: Sequence[Any]) -> QueueStats:
    """Return the reply of the script ``queue/stats``."""
    ready, delayed, in_flight, dead, quarantined, put, acked, redelivered, paused, oldest, put_back = reply
    at = from_ms(oldest) if oldest else None
    return QueueStats(ready, delayed, in_flight, dead, quarantined, put, acked, redelivered, bool(paused), at, put_back)


logger = logger_of(__name__)


class Step(NamedTuple):
    """What one step did: whether each ack was accepted, and the messages that it claimed."""

    accepted: list[bool]
    messages: list[Message]


class QueueClaims:
    """Claim messages of one RedisQueue. *longest_wait*: most seconds of one command that blocks."""

    def __init__(self, records: Records, scripts: Scripts, settings: Settings, longest_wait: float) -> None:
        self._records = records
        self._scripts = scripts
        self._lease_ms = settings.lease_ms
        self._put_back_limit = settings.put_back_on_get
        self._poll = settings.poll_seconds
        self._longest_wait = longest_wait
        self._outage = OutageLog(logger, "Redis is away", "Redis answers again", action="store_unavailable")

    def get(self, limit: int, *, block: bool, timeout: Seconds | None) -> list[Message]:
        """Claim up to *limit* messages; with *block*, wait for the first one, for *timeout* at most.

        With *block*, it also waits for a Redis that cannot be reached or refuses commands for now.
        """
        deadline = _deadline(timeout)
        backoff = Backoff()
        while True:
            try:
                messages, next_in = self._claim(limit)
                self._outage.end()
                if messages or not block:
                    return messages
                left = deadline - monotonic()
                if left <= 0:
                    return []
                self._wait(min(next_in, self._poll, left, self._longest_wait))
                backoff.reset()
            except StoreError as error:
                if not block or not is_outage(error) or deadline <= monotonic():
                    raise
                self._pause(error, backoff, deadline)

    def ack_then_get(self, done: Sequence[Message], limit: int) -> Callable[[], Step]:
        """Return a call that acks *done* and claims up to *limit* ready messages in one step, without waiting.

        If it raises an error that is an outage, call it again: it takes effect once, and returns what the lost reply
        said.
        """
        call = self._records.prepare("queue/get", done, **self._arguments(limit))
        return lambda: self._step(done, call)

    def ack_and_get(self, message: Message, heartbeat: Heartbeat, timeout: Seconds | None) -> Message | None:
        """Finish *message* however long Redis is away, for *timeout* at most; claim the next one if one is ready."""
        call, backoff, deadline = self.ack_then_get([message], 1), Backoff(), math.inf
        while True:
            try:
                step = call()
                break
            except StoreError as error:
                if not is_outage(error) or deadline <= monotonic():
                    raise
                if deadline == math.inf:
                    deadline = _deadline(timeout)
                # The outcome of the ack is unknown: until it is known, nobody else may get the message.
                heartbeat.add(message)
                self._pause(error, backoff, deadline)
        self._outage.end()
        heartbeat.remove(message)
        if not step.accepted[0]:
            logger.warning("the lease was lost", extra={"action": "lease_lost", "message_id": message.id})
        return step.messages[0] if step.messages else None

    def _step(self, done: Sequence[Message], call: Callable[[], Any]) -> Step:
        try:
            reply = call()
        except StoreError as error:
            if is_outage(error):
                raise
            # The next claim meets this error, too. What is done must be acked in any case.
            return Step(self._records.ack(done), [])
        messages, wait, _ = self._read(reply)
        if messages and wait <= 0:
            self._maintain_or_log()
        return Step(read_flags(reply[3]), messages)

    def _claim(self, limit: int) -> tuple[list[Message], float]:
        """Claim once; if nothing was ready but something is due, move that and claim again.

        Returns the messages, and the seconds until a delayed message or an expired lease needs a look.
        """
        messages, wait = self._claim_once(limit)
        if wait > 0:
            return messages, wait
        if messages:
            self._maintain_or_log()
        elif self._maintain():
            messages, _ = self._claim_once(limit)
        return messages, self._poll

    def _claim_once(self, limit: int) -> tuple[list[Message], float]:
        while True:
            messages, wait, again = self._read(self._records.call("queue/get", **self._arguments(limit)))
            if not again:
                return messages, wait

    def _read(self, reply: Sequence[Any]) -> tuple[list[Message], float, bool]:
        """Return the claimed messages, the seconds as :meth:`_claim` does, and whether all of them were unreadable."""
        token, expires, next_in, _, *found = reply
        lease = Lease(token.decode(), from_ms(expires))
        read = [read_message(self._records, row, lease) for row in rows_of(found, 3)]
        messages = [message for message in read if message is not None]
        again = not messages and (bool(found) or token == b"+")
        return messages, math.inf if next_in < 0 else next_in / 1000, again

    def _arguments(self, limit: int) -> dict[str, Any]:
        return {"now": self._records.clock(), "lease": self._lease_ms, "limit": limit, "nonce": os.urandom(8).hex()}

    def _maintain(self) -> bool:
        """Make due messages ready and put back expired leases; return whether that moved any."""
        moved = self._records.run("queue/promote", now=self._records.clock(), limit=CHUNK)
        if self._put_back_limit:
            moved += self._records.put_back(self._put_back_limit).returned
        return bool(moved)

    def _maintain_or_log(self) -> None:
        try:
            self._maintain()
        except RedisQueueError as error:
            # Claimed messages must reach the caller even if the maintenance failed.
            logger.warning("cannot put back: %s", error, extra={"action": "put_back_failed"})

    def _wait(self, seconds: float) -> None:
        # Blocks on the wake-up token, never on messages: a token lost with its consumer costs one poll interval.
        self._scripts.command("BLPOP", self._records.keys.wake, max(seconds, MIN_WAIT))

    def _pause(self, error: StoreError, backoff: Backoff, deadline: float) -> None:
        pause = max(0.0, min(backoff.next(), deadline - monotonic()))
        self._outage.note(error, retry_in=pause)
        sleep(pause)


def _deadline(timeout: Seconds | None) -> float:
    return math.inf if timeout is None else monotonic() + duration_ms(timeout, name="timeout") / 1000
