"""RedisQueue: a reliable work queue for data."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Literal

from redis_queue.backoff import Backoff
from redis_queue.errors import (
    InvalidValueError,
    LeaseLostError,
    QueueFullError,
    Reason,
    RedisQueueError,
    StoreUnavailableError,
)
from redis_queue.logs import logger_of
from redis_queue.model import Lease, Message, PutBack
from redis_queue.queue.heartbeat import Heartbeat
from redis_queue.queue.verdict import verdict_on
from redis_queue.queue.view import QueueView
from redis_queue.store.chunks import CHUNK, MANY, by_size, check_limit, check_many, chunks, gap_ms
from redis_queue.store.ids import check_id, new_ids
from redis_queue.times import Seconds, duration_ms, from_ms, point_ms

SHORTEST_WAIT: Final = 0.005
"""Redis 6.2 cuts a timeout of a millisecond to 0, which means for ever."""

logger = logger_of(__name__)

Place = Literal["ready", "delayed", "dead", "quarantine"]


class RedisQueue(QueueView):
    """Messages that are delivered at least once, and never lost between two steps.

    A message is in exactly one place: ``ready | delayed -> in flight -> done | dead``. Claiming takes a lease; when it
    ends without an ack the message goes back, and an ack that comes too late is refused. All moves are single scripts
    on the server's clock. Two objects with the same name and prefix are the same queue. Safe for threads and fork.

    *redis* is a URL or a redis-py client. Settings (:class:`redis_queue.store.settings.Settings`) go by keyword or as a
    whole.

    Any call may raise StoreUnavailableError: then its outcome is unknown, and calling again is safe for everything but
    ``put`` without a *dedupe_key*.
    """

    def put(
        self,
        body: Any,
        *,
        delay: Seconds = 0,
        headers: Mapping[str, Any] | None = None,
        dedupe_key: str | None = None,
    ) -> str:
        """Store *body* and return the id of its message.

        *dedupe_key* becomes the id: while a message with it lives (acked or purged ends that), another put adds
        nothing and returns the same id. Raises BodyError, InvalidDelayError, QueueFullError.
        """
        id_ = new_ids(1)[0] if dedupe_key is None else check_id(dedupe_key, name="dedupe_key")
        self._put([(id_, duration_ms(delay), self._shard.codec.encode(body, headers))])
        return id_

    def put_many(
        self,
        bodies: Iterable[Any],
        *,
        delay: Seconds = 0,
        headers: Mapping[str, Any] | None = None,
        dedupe_key: Callable[[Any], str] | None = None,
    ) -> list[str]:
        """Store each of *bodies* in order and return their ids; one round trip per 500, and per MiB of records.

        What goes in one round trip is stored all or none. If a later one fails (QueueFullError, StoreUnavailableError),
        what went before it stays stored. *dedupe_key* is called with each body.
        """
        wait = duration_ms(delay)
        check_many(bodies, name="bodies")
        encode = self._shard.codec.encode
        ids: list[str] = []
        for chunk in chunks(bodies):
            names = (
                new_ids(len(chunk))
                if dedupe_key is None
                else [check_id(dedupe_key(body), name="dedupe_key") for body in chunk]
            )
            messages = [(id_, wait, encode(body, headers)) for id_, body in zip(names, chunk, strict=True)]
            for part in by_size(messages):
                self._put(part)
            ids += names
        return ids

    def get(self, *, block: bool = True, timeout: Seconds | None = None) -> Message | None:
        """Claim the next message, or return None if there is none (after *timeout*, if given, when blocking)."""
        messages = self._claim_within(1, block=block, timeout=timeout)
        return messages[0] if messages else None

    def get_many(self, limit: int, *, block: bool = False, timeout: Seconds | None = None) -> list[Message]:
        """Claim up to *limit* (1 to 500) messages in one round trip; with *block*, wait for the first one.

        One round trip reads about 1 MiB of messages: fewer than *limit* may come though more are ready.
        """
        return self._claim_within(check_limit(limit, CHUNK), block=block, timeout=timeout)

    def ack(self, message: Message) -> bool:
        """Finish *message*. False: the lease was lost, someone else has it or had it; nothing changed."""
        return self._shard.ack([message])[0]

    def ack_many(self, messages: Iterable[Message]) -> list[bool]:
        """Finish *messages*, one round trip per 500; a False for each whose lease was lost."""
        return self._shard.ack(list(messages))

    def nack(
        self, message: Message, *, delay: Seconds = 0, reason: Reason = "", dead: bool = False, counted: bool = True
    ) -> bool:
        """Give *message* back, to be claimed again at once (before all others) or after *delay*.

        With its last delivery, or *dead*, it becomes a dead letter with *reason*. ``counted=False`` takes the delivery
        back: for work that was never begun. False: the lease was lost; nothing changed.
        """
        return self.nack_many([message], delay=delay, reason=reason, dead=dead, counted=counted)[0]

    def nack_many(
        self,
        messages: Iterable[Message],
        *,
        delay: Seconds = 0,
        reason: Reason = "",
        dead: bool = False,
        counted: bool = True,
    ) -> list[bool]:
        """Give *messages* back, as :meth:`nack` does, keeping their order; one round trip per 500."""
        wait = duration_ms(delay)
        return self._shard.release(list(messages), delay=wait, reason=reason, counted=counted or dead, dead=dead)

    def extend(self, message: Message, lease: Seconds | None = None) -> bool:
        """Lengthen the lease to *lease* (default: the visibility timeout) from now; never shortens it.

        Works even after its end as long as nobody put the message back. False: the lease was lost.
        """
        return self.extend_many([message], lease)[0]

    def extend_many(self, messages: Iterable[Message], lease: Seconds | None = None) -> list[bool]:
        """Lengthen the leases of *messages*, as :meth:`extend` does."""
        length = self.settings.lease_ms if lease is None else max(1, duration_ms(lease, name="lease"))
        return self._shard.extend(list(messages), length)

    def still_mine(self, message: Message) -> bool:
        """Tell whether an ack of *message* would be accepted now."""
        return self._shard.extend([message], 0)[0]

    @contextlib.contextmanager
    def lease(self, *, block: bool = True, timeout: Seconds | None = None) -> Iterator[Message | None]:
        """Claim a message for a ``with`` block: acked at its end, given back if it raises, extended while it runs.

        :class:`~redis_queue.errors.Nack` and :class:`~redis_queue.errors.Dead` decide how, as in a Consumer; what was
        raised leaves the block all the same. Yields None where :meth:`get` would return None. Raises LeaseLostError at
        the end if the lease was lost. A child forked within the block settles nothing when it leaves it.
        """
        message = self.get(block=block, timeout=timeout)
        if message is None:
            yield None
            return
        with self.keep_alive() as heartbeat:
            heartbeat.add(message)
            try:
                yield message
            except BaseException as error:
                if not heartbeat.elsewhere:
                    heartbeat.remove(message)
                    with contextlib.suppress(RedisQueueError):
                        self.nack(message, **verdict_on(message, error, lambda _: 0)._asdict())
                raise
            if heartbeat.elsewhere:
                return
            heartbeat.remove(message)
            if not self.ack(message):
                raise LeaseLostError

    def consume(self, *, timeout: Seconds | None = None) -> Iterator[Message]:
        """Yield messages for ever, or until none came for *timeout*.

        A message is acked when the loop asks for the next one, and given back when the loop is left before: by break,
        return or an exception. Its lease is extended meanwhile. In a child forked within the loop it ends, and settles
        nothing.
        """
        with self.keep_alive() as heartbeat:
            message = self.get(timeout=timeout)
            while message is not None:
                heartbeat.add(message)
                try:
                    yield message
                except BaseException:
                    if not heartbeat.elsewhere:
                        heartbeat.remove(message)
                        self.nack(message, reason="consume() was left")
                    raise
                if heartbeat.elsewhere:
                    return
                heartbeat.remove(message)
                message = self._ack_and_wait(message, heartbeat, timeout) or self.get(timeout=timeout)

    def keep_alive(self, *, max_runtime: Seconds | None = None) -> Heartbeat:
        """Return a Heartbeat for leases of this queue; use it as a context manager.

        Raises InvalidDelayError for an invalid *max_runtime*.
        """
        longest = None if max_runtime is None else duration_ms(max_runtime, name="max_runtime") / 1000
        return Heartbeat(self._shard, self.settings.lease_ms, max_runtime=longest)

    def put_back(self, limit: int = MANY) -> PutBack:
        """Return what up to *limit* expired leases hold; any number of callers may do so at once."""
        return self._shard.put_back(check_limit(limit, MANY))

    def promote(self, limit: int = MANY) -> int:
        """Make delayed messages that are due ready, which every ``get`` does on its way; return how many."""
        left = check_limit(limit, MANY)
        total = 0
        while left > 0 and (moved := self._shard.run("queue/promote", now=self._shard.clock(), limit=min(left, CHUNK))):
            total += moved
            left -= moved
        return total

    def redrive(self, ids: Iterable[str] | None = None, *, rate: float | None = None) -> int:
        """Bring dead letters (default: all) back with all their deliveries; return how many.

        *rate* spreads them over time, so many per second: they are delayed at once and this call does not wait.
        """
        if ids is not None:
            ids = [check_id(id_) for id_ in check_many(ids, name="ids")]
        return self._shard.redrive(ids, gap_ms(rate))

    def delete_dead(self, ids: Iterable[str], *, until: datetime | None = None) -> int:
        """Delete single dead letters; return how many. With *until*, only those that died until then.

        So a message that was redriven and died again after you listed it is kept, if *until* is the time of the list.
        """
        ids = [check_id(id_) for id_ in check_many(ids, name="ids")]
        return self._shard.delete_dead(ids, 0 if until is None else point_ms(until, name="until"))

    def purge(self, *places: Place, limit: int = MANY) -> int:
        """Delete up to *limit* messages in *places* (default: ready and delayed) and return how many went.

        What is in flight stays with its holders. The quarantine goes as a whole.
        """
        known = ("ready", "delayed", "dead", "quarantine")
        for place in places:
            if place not in known:
                raise InvalidValueError(f"purge({place!r}): known places are {', '.join(known)}")
        check_limit(limit, MANY)
        total = 0
        for place in places or ("ready", "delayed"):
            if total < limit:
                total += self._shard.purge("waiting" if place == "delayed" else place, limit - total)
        return total

    def destroy(self) -> None:
        """Delete the queue and everything in it, in flight too, and take it out of the registry."""
        self._shard.destroy()
        self._registry.forget("queue", self.name)
        self._registered = False

    def pause(self) -> None:
        """Let nobody claim until :meth:`resume`; puts and acks go on. Holds across restarts."""
        self._scripts.command("HSET", self._keys.meta, "paused", 1)

    def resume(self) -> None:
        """Let messages be claimed again and wake who waits."""
        self._scripts.command("HDEL", self._keys.meta, "paused")
        self._scripts.command("RPUSH", self._keys.wake, 1)

    def _put(self, messages: list[tuple[str, int, bytes]]) -> None:
        if not self._registered:
            self._registry.add("queue", self.name, self.settings)
            self._registered = True
        new, flags = self._shard.call(
            "queue/put",
            now=self._shard.clock(),
            max_length=self.settings.max_length,
            more=[field for message in messages for field in message],
        )
        if flags == b"full":
            raise QueueFullError(f"{self.name}: holds max_length={self.settings.max_length} waiting messages")
        if new:
            # The first put ever, or the first after a FLUSHALL while this object lived.
            self._registry.add("queue", self.name, self.settings)

    def _claim_within(self, limit: int, *, block: bool, timeout: Seconds | None) -> list[Message]:
        deadline = self._deadline(timeout)
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
                self._sit_out(error, backoff, deadline)

    @staticmethod
    def _deadline(timeout: Seconds | None) -> float:
        return math.inf if timeout is None else time.monotonic() + duration_ms(timeout, name="timeout") / 1000

    @staticmethod
    def _sit_out(error: StoreUnavailableError, backoff: Backoff, deadline: float) -> None:
        pause = max(0.0, min(backoff.next(), deadline - time.monotonic()))
        logger.warning("Redis is away: %s", error, extra={"action": "store_unavailable", "retry_in": pause})
        time.sleep(pause)

    def _ack_and_wait(self, message: Message, heartbeat: Heartbeat, timeout: Seconds | None) -> Message | None:
        """Finish *message* however long Redis is away, for *timeout* at most; claim the next one if it is there."""
        try:
            return self._ack_and_get(message)
        except StoreUnavailableError as error:
            away = error
        # Whether it was acked is unknown: until it is, nobody else shall have it.
        heartbeat.add(message)
        deadline, backoff = self._deadline(timeout), Backoff()
        while True:
            self._sit_out(away, backoff, deadline)
            try:
                self.ack(message)
            except StoreUnavailableError as error:
                if deadline <= time.monotonic():
                    raise
                away = error
            else:
                heartbeat.remove(message)
                return None

    def _ack_and_get(self, message: Message) -> Message | None:
        """Finish *message* and claim the next one that is ready, in one round trip."""
        mine, reply = self._shard.ack_and(message, "queue/get", **self._claim_arguments(1))
        if not mine:
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
            # What was claimed is worth more than what was to be tidied up on the way.
            logger.warning("cannot put back: %s", error, extra={"action": "put_back_failed"})
            return messages, self._poll
        if not messages and moved:
            messages, _ = self._claim_once(limit)
        return messages, self._poll

    def _claim_once(self, limit: int, reply: Any = None) -> tuple[list[Message], float]:
        """Return what was claimed, and the seconds until a delayed message or an expired lease needs a look."""
        while True:
            token, expires, next_in, *found = reply or self._shard.call("queue/get", **self._claim_arguments(limit))
            reply = None
            wait = math.inf if next_in < 0 else next_in / 1000
            if not found and token != b"+":
                return [], wait
            lease = Lease(token.decode(), from_ms(expires))
            fields = iter(found)
            rows = zip(fields, fields, fields, strict=True)
            read = [self._read(id_, count, record, lease) for id_, count, record in rows]
            if messages := [message for message in read if message is not None]:
                return messages, wait

    def _claim_arguments(self, limit: int) -> dict[str, Any]:
        return {"now": self._shard.clock(), "lease": self._lease_ms, "limit": limit, "nonce": os.urandom(8).hex()}

    def _maintain(self) -> bool:
        moved = self._shard.run("queue/promote", now=self._shard.clock(), limit=CHUNK)
        limit = self.settings.put_back_on_get
        if limit:
            back = self._shard.put_back(limit)
            moved += back.returned
        return bool(moved)

    def _wait(self, seconds: float) -> None:
        # Blocks on the wake-up token, never on messages: a token lost with its consumer costs one poll interval.
        self._scripts.command("BLPOP", self._keys.wake, max(seconds, SHORTEST_WAIT))
