"""RedisQueue: a reliable work queue for data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from redis_queue.basics.times import Seconds, duration_ms, point_ms
from redis_queue.errors import InvalidValueError, LeaseLostError, QueueFullError, Reason, RedisQueueError
from redis_queue.model import DeadLetter, InFlight, Item, Message, PutBack, Quarantined, QueueStats
from redis_queue.queue.claims import Claims, Step, read_message, read_stats
from redis_queue.queue.handler import verdict_on
from redis_queue.queue.heartbeat import Heartbeat
from redis_queue.store.chunks import (
    CHUNK,
    MANY,
    by_size,
    check_budget,
    check_limit,
    check_many,
    check_offset,
    chunks,
    gap_ms,
)
from redis_queue.store.connection import Client, connect, longest_wait
from redis_queue.store.ids import check_id, new_ids
from redis_queue.store.keys import Keys
from redis_queue.store.records import Records
from redis_queue.store.registry import Registry
from redis_queue.store.scripts import Clock, Scripts, server_clock
from redis_queue.store.settings import QueueOverrides, Settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

QueuePlace = Literal["ready", "delayed", "dead", "quarantine"]

PLACES: Final[tuple[QueuePlace, ...]] = get_args(QueuePlace)


class RedisQueue:
    """Messages that are delivered at least once, and never lost between two steps.

    Until a message is done, it is in exactly one place: ``ready | delayed -> in flight -> done | dead``. Claiming takes
    a lease. If the lease expires, the message is put back; after that, an ack of its old holder is refused. Each move
    is one script and uses the server's clock. Two objects with the same name and prefix are the same queue. Safe for
    threads and after fork.

    *redis* is a URL or a redis-py client. Pass single settings by keyword, or all as *settings*
    (:class:`redis_queue.store.settings.Settings`).

    Any call may raise StoreUnavailableError: then it may or may not have taken effect. You can safely repeat any call
    except ``put`` and ``put_many`` without a *dedupe_key*.
    """

    def __init__(
        self,
        name: str,
        redis: str | Client,
        *,
        settings: Settings | None = None,
        clock: Clock = server_clock,
        **overrides: Unpack[QueueOverrides],
    ) -> None:
        self.name = name
        self.settings = Settings.choose(settings, overrides)
        self._keys = Keys(self.settings.prefix, "queue", name)
        self.client = connect(redis, check=isinstance(redis, str))
        self._scripts = Scripts(self.client)
        self._registry = Registry(self._scripts, self.settings.prefix)
        self._registered = False
        self._records = Records(self._scripts, self._keys, self.settings, listed=True, clock=clock)
        self._claims = Claims(self._records, self._scripts, self.settings, longest_wait(self.client))

    def __repr__(self) -> str:
        return f"RedisQueue({self.name!r}, prefix={self.settings.prefix!r})"

    def put(
        self,
        body: Any,
        *,
        delay: Seconds = 0,
        headers: Mapping[str, Any] | None = None,
        dedupe_key: str | None = None,
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

    def ack(self, message: Message) -> bool:
        """Finish *message*. False: the lease was lost (put back or settled before); nothing changed."""
        return self._records.ack([message])[0]

    def ack_many(self, messages: Iterable[Message]) -> list[bool]:
        """Finish *messages*, one round trip per 500; False for each message whose lease was lost."""
        return self._records.ack(list(messages))

    def ack_then_get(self, messages: Iterable[Message], limit: int) -> Callable[[], Step]:
        """Return a call that finishes *messages* and claims up to *limit* others (each 1 to 500) in one round trip.

        The call does not wait for messages. It returns a pair: the result of :meth:`ack_many` and that of
        :meth:`get_many`. If it raises StoreUnavailableError, call it again before any other call of this thread to this
        queue: it takes effect once.
        """
        done = list(messages)
        check_limit(len(done), CHUNK, name="messages")
        return self._claims.ack_then_get(done, check_limit(limit, CHUNK))

    def nack(
        self, message: Message, *, delay: Seconds = 0, reason: Reason = "", dead: bool = False, counted: bool = True
    ) -> bool:
        """Give *message* back, to be claimed again at once (before all others) or after *delay*.

        After its last delivery, or with *dead*, it becomes a dead letter with *reason*. With ``counted=False`` this
        delivery does not count: use it for work that you did not begin. False: the lease was lost; nothing changed.
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
        return self._records.release(list(messages), delay=wait, reason=reason, counted=counted or dead, dead=dead)

    def extend(self, message: Message, lease: Seconds | None = None) -> bool:
        """Lengthen the lease to *lease* (default: that of the settings) from now; never shortens it.

        This also works after the lease expired, until the message is put back. False: the lease was lost.
        """
        return self.extend_many([message], lease)[0]

    def extend_many(self, messages: Iterable[Message], lease: Seconds | None = None) -> list[bool]:
        """Lengthen the leases of *messages*, as :meth:`extend` does."""
        length = self.settings.lease_ms if lease is None else max(1, duration_ms(lease, name="lease"))
        return self._records.extend(list(messages), length)

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
        """Yield messages for ever, or until no message came for *timeout*.

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
        return Heartbeat(self._records, self.settings.lease_ms, max_runtime=longest)

    def put_back(self, limit: int = MANY) -> PutBack:
        """Put back up to *limit* messages whose leases expired. Any number of processes may do so at once."""
        return self._records.put_back(check_limit(limit, MANY))

    def promote(self, limit: int = MANY) -> int:
        """Make due messages ready and return their number. Each ``get`` does this, too."""
        left, total, run = check_limit(limit, MANY), 0, self._records.run
        while left > 0 and (moved := run("queue/promote", now=self._records.clock(), limit=min(left, CHUNK))):
            total += moved
            left -= moved
        return total

    def redrive(self, ids: Iterable[str] | None = None, *, rate: float | None = None, after: Seconds = 0.0) -> int:
        """Redrive dead letters (default: all), with deliveries reset to zero; return their number.

        *rate* (per second) spreads them over time, the first one *after* seconds: this call makes all of them delayed
        messages, and does not wait.
        """
        if ids is not None:
            ids = [check_id(id_) for id_ in check_many(ids, name="ids")]
        return self._records.redrive(ids, gap_ms(rate), duration_ms(after, name="after"))

    def delete_dead(self, ids: Iterable[str], *, until: datetime | None = None) -> int:
        """Delete the dead letters *ids*; return their number. With *until*, only those that died at or before it.

        Pass the time at which you listed them as *until*, to keep a message that was redriven and died again since.
        """
        ids = [check_id(id_) for id_ in check_many(ids, name="ids")]
        return self._records.delete_dead(ids, 0 if until is None else point_ms(until, name="until"))

    def purge(self, *places: QueuePlace, limit: int = MANY) -> int:
        """Delete up to *limit* messages in *places* (default: ready and delayed); return their number.

        Messages in flight stay with their holders. The quarantine is always deleted entirely.
        """
        for place in places:
            if place not in PLACES:
                raise InvalidValueError(f"purge({place!r}): must be one of {', '.join(PLACES)}")
        check_limit(limit, MANY)
        total = 0
        for place in places or ("ready", "delayed"):
            if total < limit:
                total += self._records.purge("waiting" if place == "delayed" else place, limit - total)
        return total

    def destroy(self) -> None:
        """Delete the queue with all messages, including those in flight, and remove it from the registry."""
        self._records.destroy()
        self._registry.forget("queue", self.name)
        self._registered = False

    def pause(self) -> None:
        """Stop all claims until :meth:`resume`. Puts and acks still work. A restart does not end a pause."""
        self._scripts.command("HSET", self._keys.meta, "paused", 1)

    def resume(self) -> None:
        """Allow claims again and wake a waiting consumer."""
        self._scripts.command("HDEL", self._keys.meta, "paused")
        self._scripts.command("RPUSH", self._keys.wake, 1)

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

    def __bool__(self) -> bool:
        return True

    def dead_letters(self, *, offset: int = 0, limit: int = 100, max_bytes: int | None = None) -> list[DeadLetter]:
        """Return a page of dead letters, oldest first. More than 1 MiB takes several calls.

        *max_bytes* limits what is read: the body of a dead letter that does not fit is an :class:`Unread`.
        """
        return self._records.dead_letters(check_offset(offset), check_limit(limit, CHUNK), check_budget(max_bytes))

    def quarantined(self, *, offset: int = 0, limit: int = 100, max_bytes: int | None = None) -> list[Quarantined]:
        """Return a page of unreadable records, oldest first.

        *max_bytes* limits what is read: *raw* of a record that does not fit is empty.
        """
        return self._records.quarantined(check_offset(offset), check_limit(limit, CHUNK), check_budget(max_bytes))

    def look(self, id: str, *, max_bytes: int | None = None) -> Item | None:
        """Return the message *id* in any state, including dead letters; None if it does not exist.

        With *max_bytes* the body of a larger record is an :class:`Unread`.
        """
        return self._records.look(check_id(id), check_budget(max_bytes))

    def versions(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the versions of existing *ids*. The version of an id changes when a new message gets this id."""
        return self._records.versions([check_id(id_) for id_ in ids])

    def in_flight(self, *, offset: int = 0, limit: int = 100) -> list[InFlight]:
        """Return a page of the messages in flight, in the order in which their leases end."""
        return self._records.in_flight(check_offset(offset), check_limit(limit, CHUNK))

    def _put(self, messages: list[tuple[str, int, bytes]]) -> None:
        if not self._registered:
            self._registry.add("queue", self.name, self.settings)
            self._registered = True
        new, flags = self._records.call(
            "queue/put",
            now=self._records.clock(),
            max_length=self.settings.max_length,
            more=[field for message in messages for field in message],
        )
        if flags == b"full":
            most = self.settings.max_length
            raise QueueFullError(f"{self.name}: would hold more than max_length={most} ready and delayed messages")
        if new:
            # The queue is new: this was its first put, or the first one after a FLUSHALL.
            self._registry.add("queue", self.name, self.settings)
