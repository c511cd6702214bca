"""RedisQueue: a reliable work queue for data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args

from redis_queue.basics.times import Seconds, duration_ms
from redis_queue.errors import LeaseLostError, QueueFullError, RedisQueueError
from redis_queue.model import Message, QueuePlace, QueueStats
from redis_queue.queue.claims import QueueClaims, Step, read_message, read_stats
from redis_queue.queue.handler import verdict_on
from redis_queue.queue.heartbeat import Heartbeat
from redis_queue.store.base_queue import BaseQueue
from redis_queue.store.chunks import CHUNK, MANY, by_size, check_budget, check_limit, check_many, chunks
from redis_queue.store.connection import longest_wait
from redis_queue.store.ids import check_id, new_ids


class RedisQueue(BaseQueue[Message]):
    """Messages that are delivered at least once, and never lost between two steps.

    Until a message is done, it is in exactly one place: ``ready | delayed -> in flight -> done | dead``. Claiming takes
    a lease. If the lease expires, the message is put back; after that, an ack of its old holder is refused. Each move
    is one script and uses the server's clock. Two objects with the same name and prefix are the same queue. Safe for
    threads and after fork.

    *redis* is a URL or a redis-py client. Pass single settings by keyword, or all as *settings*
    (:class:`redis_queue.store.settings.Settings`). In the signatures, *Held* is a :class:`Message`.

    Any call may raise StoreUnavailableError: then it may or may not have taken effect. You can safely repeat any call
    except ``put`` and ``put_many`` without a *dedupe_key*.
    """

    _kind = "queue"

    def _add_parts(self) -> None:
        self._records = self._shards[0]
        self._scripts = self._shards.scripts
        self._claims = QueueClaims(self._records, self._scripts, self.settings, longest_wait(self.client))

    def __repr__(self) -> str:
        return f"RedisQueue({self.name!r}, prefix={self.settings.prefix!r})"

    def put(
        self, body: Any, *, delay: Seconds = 0, headers: Mapping[str, Any] | None = None, dedupe_key: str | None = None
    ) -> str:
        """Store *body* and return the id of its message.

        *dedupe_key* becomes the id. While a message with this id exists (until it is acked or deleted), another put
        adds nothing and returns the same id. Raises BodyError, InvalidDelayError, QueueFullError.
        """
        id_ = new_ids(1)[0] if dedupe_key is None else check_id(dedupe_key, name="dedupe_key")
        self._put([(id_, duration_ms(delay), self._records.codec.encode(body, headers))])
        return id_

    def put_many(
        self,
        bodies: Iterable[Any],
        *,
        delay: Seconds = 0,
        headers: Mapping[str, Any] | None = None,
        dedupe_key: Callable[[Any], str] | None = None,
    ) -> list[str]:
        """Store each of *bodies* in order and return their ids.

        A round trip carries up to 500 messages or 1 MiB of records, and stores all of its messages or none. If one
        fails (QueueFullError, StoreUnavailableError), the messages of earlier ones stay stored. *dedupe_key* is called
        with each body.
        """
        wait = duration_ms(delay)
        check_many(bodies, name="bodies")
        encode = self._records.codec.encode
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
        """Claim the next message. With *block*, wait for one (up to *timeout*, if given). None: there is none."""
        messages = self._claims.get(1, block=block, timeout=timeout)
        return messages[0] if messages else None

    def get_many(self, limit: int, *, block: bool = False, timeout: Seconds | None = None) -> list[Message]:
        """Claim up to *limit* (1 to 500) messages in one round trip; with *block*, wait for the first one.

        One round trip reads about 1 MiB: it may return fewer than *limit* messages even if more are ready.
        """
        return self._claims.get(check_limit(limit, CHUNK), block=block, timeout=timeout)

    def ack_then_get(self, messages: Iterable[Message], limit: int) -> Callable[[], Step]:
        """Return a call that finishes *messages* and claims up to *limit* others (each 1 to 500) in one round trip.

        The call does not wait for messages. It returns a pair: the result of :meth:`ack_many` and that of
        :meth:`get_many`. If it raises StoreUnavailableError, call it again before any other call of this thread to this
        queue: it takes effect once.
        """
        done = list(messages)
        check_limit(len(done), CHUNK, name="messages")
        return self._claims.ack_then_get(done, check_limit(limit, CHUNK))

    def still_mine(self, message: Message) -> bool:
        """Return whether an ack of *message* would be accepted now."""
        return self._records.extend([message], 0)[0]

    @contextlib.contextmanager
    def lease(self, *, block: bool = True, timeout: Seconds | None = None) -> Iterator[Message | None]:
        """Claim a message for a ``with`` block: acked at its end, given back if it raises, extended while it runs.

        Raise :class:`~redis_queue.errors.Nack` or :class:`~redis_queue.errors.Dead` to choose how it is given back, as
        in a Consumer; the exception also leaves the block. Yields None if :meth:`get` would return None. Raises
        LeaseLostError at the end if the lease was lost. A child process forked within the block neither acks the
        message nor gives it back.
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
        """Yield messages forever, or until no message came for *timeout*.

        A message is acked when the loop asks for the next one, and given back if break, return or an exception ends
        the loop before that. Its lease is extended meanwhile. In a child process forked within the loop, the loop ends,
        and the message is neither acked nor given back.
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
                        self.nack(message, reason="the loop over consume() ended")
                    raise
                if heartbeat.elsewhere:
                    return
                heartbeat.remove(message)
                message = self._claims.ack_and_get(message, heartbeat, timeout) or self.get(timeout=timeout)

    def keep_alive(self, *, max_runtime: Seconds | None = None) -> Heartbeat:
        """Return a Heartbeat, a thread that extends leases of this queue; use it as a context manager.

        Raises InvalidDelayError for an invalid *max_runtime*.
        """
        longest = None if max_runtime is None else duration_ms(max_runtime, name="max_runtime") / 1000
        return Heartbeat(self._records.extend, self.settings.lease_ms, max_runtime=longest)

    def promote(self, limit: int = MANY) -> int:
        """Make due messages ready and return their number. Each ``get`` does this, too."""
        left, total, run = check_limit(limit, MANY), 0, self._records.run
        while left > 0 and (moved := run("queue/promote", now=self._records.clock(), limit=min(left, CHUNK))):
            total += moved
            left -= moved
        return total

    def purge(self, *places: QueuePlace, limit: int = MANY) -> int:
        """Delete up to *limit* messages in *places* (default: ready and delayed); return their number.

        Messages in flight stay with their holders. The quarantine is always deleted entirely.
        """
        return self._purge(places or ("ready", "delayed"), get_args(QueuePlace), limit)

    def pause(self) -> None:
        """Stop all claims until :meth:`resume`. Puts and acks still work. A restart does not end a pause."""
        self._scripts.command("HSET", self._records.keys.meta, "paused", 1)

    def resume(self) -> None:
        """Allow claims again and wake a waiting consumer."""
        self._scripts.command("HDEL", self._records.keys.meta, "paused")
        self._scripts.command("RPUSH", self._records.keys.wake, 1)

    def peek(self, limit: int = 1, *, max_bytes: int | None = None) -> list[Message]:
        """Return the next messages without claiming them; unreadable ones are left out.

        More than 1 MiB takes several calls; messages may be claimed between them. *max_bytes* limits what is read: the
        body of a message that does not fit is an :class:`Unread`.
        """
        rows = self._records.pages("queue/peek", 3, 0, check_limit(limit, CHUNK), check_budget(max_bytes))
        found = (read_message(self._records, row, None) for row in rows)
        return [message for message in found if message is not None]

    def stats(self) -> QueueStats:
        """Return all counts, read at one moment."""
        return read_stats(self._records.run("queue/stats"))

    def __len__(self) -> int:
        """Return the number of ready and delayed messages."""
        stats = self.stats()
        return stats.ready + stats.delayed

    def _put(self, messages: list[tuple[str, int, bytes]]) -> None:
        flags = self._shards.store(
            self._records,
            "queue/put",
            max_length=self.settings.max_length,
            more=[field for message in messages for field in message],
        )
        if flags == b"full":
            most = self.settings.max_length
            raise QueueFullError(f"{self.name}: would hold more than max_length={most} ready and delayed messages")
