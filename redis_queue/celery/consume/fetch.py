"""Atomic fetch: take a message out of its list and record it as in flight, in one step.

kombu waits in BRPOP and records the message afterwards; a worker that is killed in between loses it. A script takes and
records a message in one step, but cannot wait for one. So the connection that kombu's event loop watches waits for
invalidations (CLIENT TRACKING) instead: Redis sends one when a list that was empty changes. The lists and records are
kombu's own, so stock workers may consume the same queues.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from decimal import Decimal
from queue import Empty
from typing import Any, Final, NamedTuple

import redis
from kombu.transport.redis import Channel, MultiChannelPoller
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

from redis_queue.celery.kombu_keys import InFlightKeys
from redis_queue.keeper import client_of
from redis_queue.lazy_property import LazyProperty
from redis_queue.logs import logger_of
from redis_queue.store.chunks import CHUNK
from redis_queue.store.redis_errors import translate
from redis_queue.store.script_files import load

logger = logger_of(__name__)

INVALIDATED: Final = "__redis__:invalidate"

RESP2: Final = 2
"""Protocol version in which a subscribed connection answers PING and receives no other pushes."""


class Fetched(NamedTuple):
    """Result of one fetch: when its leases began (*since*: monotonic clock, *score*: Redis clock), and the messages.

    A message is the number of its list (from 1), its bytes and its delivery tag.
    """

    since: float
    score: float
    messages: list[tuple[int, bytes, str]]


class Fetch:
    """Takes messages on a connection of its own; Redis tells the connection *waiting* when lists change."""

    def __init__(self, client: redis.Redis, waiting: Any, in_flight: InFlightKeys) -> None:
        self.waiting = waiting
        self.socket = waiting._sock
        self._script = load("held/fetch")
        self._keys = (in_flight.index, in_flight.records)
        pool = client.connection_pool
        self._connection = pool.connection_class(**pool.connection_kwargs)
        try:
            waiting.send_command("HELLO", RESP2)
            waiting.read_response()
            waiting.send_command("CLIENT", "ID")
            number = waiting.read_response()
            waiting.send_command("SUBSCRIBE", INVALIDATED)
            waiting.read_response()
            self._send("CLIENT", "TRACKING", "ON", "REDIRECT", number, "NOLOOP")
        except BaseException:
            self.close()
            raise

    def take(self, lists: list[tuple[str, str]], limit: int) -> Fetched:
        """Take up to *limit* messages out of *lists*, each a list and the JSON of exchange and routing key.

        If there are none, Redis tells *waiting* when a list changes.
        """
        while True:
            fetched = self._take(lists, limit)
            # EXISTS makes Redis before 7.2 track the lists, and finds messages that arrived after the script.
            if fetched.messages or not self._send("EXISTS", *(name for name, _ in lists)):
                return fetched

    def _take(self, lists: list[tuple[str, str]], limit: int) -> Fetched:
        since, tag = time.monotonic(), f"{os.urandom(12).hex()}-"
        arguments = (len(self._keys), *self._keys, 0, limit, tag, *(part for row in lists for part in row))
        try:
            score, *found = self._send("EVALSHA", self._script.sha, *arguments)
        except redis.exceptions.NoScriptError:
            try:
                score, *found = self._send("EVAL", self._script.source, *arguments)
            except redis.exceptions.NoPermissionError as error:
                # kombu treats this as a connection error: the worker tries again.
                raise translate(error) from error
        rows = zip(found[::2], found[1::2], strict=True)
        return Fetched(since, float(score), [(row[0], row[1], f"{tag}{n}") for n, row in enumerate(rows, 1)])

    def close(self) -> None:
        """Close the connection; messages in a lost reply are put back when their leases end."""
        self._connection.disconnect()

    def _send(self, *command: Any) -> Any:
        # Never repeated: a repeat takes more messages, and those of the first call wait until their leases end.
        self._connection.send_command(*command)
        return self._connection.read_response(disable_decoding=True)


def can_fetch() -> bool:
    """Tell whether kombu can stop watching a connection while a worker takes no messages; it needs kombu 5.7."""
    return hasattr(MultiChannelPoller, "_pause_brpop")


class FetchingChannel(Channel):
    """Redis channel of kombu with atomic fetch; uses BRPOP for consumers without acknowledgements."""

    _fetch: Fetch | None = None
    #: Tags of consumers without acknowledgements.
    _no_ack: frozenset[str] = frozenset()
    #: Whether a PING is not answered yet. Only one is sent at a time: answers would pile up while there is work.
    _pinged = False
    _in_poll: Any
    _brpop_sent_at: Any

    @LazyProperty
    def _received(self) -> deque[tuple[str, Any, Any]]:
        """Fetched messages that are not delivered yet: queue, payload and message."""
        return deque()

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any) -> Any:
        """Consume from *queue*."""
        if no_ack and queue not in self._fanout_queues:
            self._no_ack |= {consumer_tag}
        return super().basic_consume(queue, no_ack, callback, consumer_tag, **options)

    def basic_cancel(self, consumer_tag: str) -> Any:
        """Stop consuming."""
        self._no_ack -= {consumer_tag}
        return super().basic_cancel(consumer_tag)

    def _brpop_start(self, timeout: Any = None) -> None:
        if self._no_ack:
            while self._received:
                self._deliver_next()
            self._end_fetch()
            super()._brpop_start(timeout)
        elif self.active_queues:
            self._follow(self.client.connection)
            self._ping()

    def _brpop_read(self, **options: Any) -> Any:
        fetch = self._fetch
        if fetch is None or fetch.waiting is not self.client.connection:
            return super()._brpop_read(**options)
        try:
            self._hear(fetch.waiting)
            found = bool(self._received) or self._fill(fetch)
            if found:
                # There may be more messages, and the one delivered now may block the event loop while its task runs.
                self._ping()
            else:
                self._in_poll, self._brpop_sent_at = fetch.waiting, None
        except self.connection_errors:
            self._end_fetch()
            fetch.waiting.disconnect()
            raise
        if not self._received:
            raise Empty
        self._deliver_next()
        return True

    def look_again(self) -> None:
        """Look for messages without a wake-up; this also checks that the waiting connection is alive."""
        if self._fetch is not None and self._in_poll is self._fetch.waiting and self._brpop_sent_at is None:
            self._ping()

    def close(self) -> None:
        """Close the channel, and return the messages that were not settled."""
        while self._received:
            # It is returned with all other messages that were not settled.
            self.qos.keep(self._received.popleft()[2])
        if self._fetch is not None:
            self._in_poll = None
            self._end_fetch()
        super().close()

    def _follow(self, waiting: Any) -> None:
        fetch = self._fetch
        if fetch is not None and fetch.waiting is waiting and fetch.socket is waiting._sock:
            return
        self._end_fetch()
        self._pinged = False
        self._fetch = Fetch(client_of(self), waiting, InFlightKeys.of(self))

    def _ping(self) -> None:
        self._in_poll = self.client.connection
        self._brpop_sent_at = time.monotonic()
        if not self._pinged:
            self._pinged = True
            # The health check of redis-py cannot read the answer on a subscribed connection.
            self.client.connection.send_command("PING", check_health=False)

    def _hear(self, waiting: Any) -> None:
        """Read all available answers to PING and invalidations; then the caller looks for messages.

        One read of the socket may return several of them, but the event loop reports only one event.
        """
        while True:
            if bytes_to_str(waiting.read_response()[0]) == "pong":
                self._pinged = False
            if not waiting.can_read(0):
                return

    def _fill(self, fetch: Fetch) -> bool:
        """Fetch as many messages as the worker has room for; tell whether there were any."""
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            # The last consumer was cancelled before the answer to a PING arrived.
            return False
        prefix = self.global_keyprefix or ""
        lists = [(f"{prefix}{self._q_for_pri(queue, step)}", queue) for step in self.priority_steps for queue in queues]
        taken = fetch.take([(name, f'"", {dumps(queue)}') for name, queue in lists], self._room())
        for number, item, tag in taken.messages:
            self._take_in(lists[number - 1][1], item, tag, taken)
        return bool(taken.messages)

    def _deliver_next(self) -> None:
        """Deliver one message in each iteration of the event loop.

        A pool may run the task immediately, and Celery acknowledges it in the next iteration. So a kill repeats one
        task, not all tasks that were fetched together.
        """
        queue, payload, _ = self._received.popleft()
        self._queue_cycle.rotate(queue)
        self.connection._deliver(payload, queue)

    def _room(self) -> int:
        """Return how many messages the worker can take now."""
        if "can_consume" in vars(self.qos):
            # With disabled prefetch, Celery decides before each message whether it takes one.
            return 1
        room = self.qos.can_consume_max_estimate()
        return CHUNK if room is None else max(1, min(room, CHUNK))

    def _take_in(self, queue: str, item: bytes, tag: str, taken: Fetched) -> None:
        try:
            payload = loads(bytes_to_str(item))
            payload["properties"]["delivery_tag"] = tag
            # kombu turns the priority into an integer when it restores a message: 1e999999 gets a million digits.
            if isinstance(payload["properties"].get("priority"), Decimal):
                raise TypeError("priority: expected an integer, got a decimal")
            self._get_message_priority(payload)
            # Make the message here: a later error would stop this worker, and each worker that gets the message.
            message = self.Message(payload, channel=self)
        except Exception:
            logger.exception("cannot read a message of queue %s", queue, extra={"action": "message_unreadable"})
            self.qos.put_aside(tag, item)
            return
        self.qos.record(tag, taken.since, taken.score)
        self._received.append((queue, payload, message))

    def _end_fetch(self) -> None:
        fetch, self._fetch = self._fetch, None
        if fetch is not None:
            with contextlib.suppress(OSError, redis.RedisError):
                fetch.close()
