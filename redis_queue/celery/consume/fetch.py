"""Fetch: takes messages out of their lists and records them as in flight, in one step, and waits for more.

kombu waits in BRPOP and records the message afterwards; a worker that is killed in between loses it. A script takes and
records messages in one step, but cannot wait for them. So idle workers with the same queues stand in a line, in Redis.
One of them, the listener, is notified when a list changes (CLIENT TRACKING); it fetches, and the script wakes the next
one by a message on its channel. A worker in the line looks for messages by itself now and then, so that a listener that
died or hangs is replaced.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import redis

from redis_queue.celery.consume.async_connection import AsyncConnection, Call
from redis_queue.celery.kombu_keys import InFlightKeys
from redis_queue.errors import StoreUnavailableError
from redis_queue.store.keys import idle_line, idle_listener, wake_channel
from redis_queue.store.redis_errors import lacks_permission, translate
from redis_queue.store.script_files import load

INVALIDATED: Final = "__redis__:invalidate"

RESP2: Final = 2
"""Protocol version in which a subscribed connection answers PING and receives no other pushes."""

LOOK: Final = 0.9
"""Most seconds between two looks of a worker in a short line: what a listener that died costs at most."""

SHORT: Final = 20
"""Workers in a short line. In longer ones each looks less often: together about 22 times a second."""

LONGEST_LOOK: Final = 10.0
"""Most seconds between two looks of any idle worker, the listener among them."""


class MessageList(NamedTuple):
    """One list of a queue: its key, and the queue."""

    key: str
    queue: str


class Asked(NamedTuple):
    """A fetch: the first part of its delivery tags, which a number from 1 follows, and the most messages."""

    tag: str
    limit: int


class Fetched(NamedTuple):
    """Result of one fetch: when its leases began (*since*: monotonic clock, *score*: Redis clock), and the messages.

    A message is the number of its list (from 0), its bytes and its delivery tag.
    """

    since: float
    score: float
    messages: list[tuple[int, bytes, str]]


class Fetch:
    """Takes messages on one connection; another one is subscribed to wake-ups. *prefix* begins all keys of the broker.

    Raises the errors of redis-py.
    """

    def __init__(self, client: redis.Redis, in_flight: InFlightKeys, prefix: str, longest_look: float) -> None:
        self._script, self._leave = load("held/fetch"), load("held/leave")
        self._in_flight = in_flight
        self._prefix = prefix
        self._longest_look = min(LONGEST_LOOK, longest_look)
        self._channel = wake_channel(prefix, os.urandom(8).hex())
        #: Whether there may be messages to fetch.
        self.is_due = True
        #: The fetch that is not answered yet.
        self.asked: Asked | None = None
        #: When an idle worker looks for messages without a wake-up, on the monotonic clock.
        self.look_at = math.inf
        self._missed = False
        self._tracking = False
        self._line: tuple[bytes, bytes] | None = None
        self._pinged = False
        self._ping_at = time.monotonic() + self._longest_look
        self.commands = AsyncConnection(client)
        try:
            self.wakeups = AsyncConnection(client)
        except BaseException:
            self.commands.close()
            raise
        try:
            self.wakeups.call("HELLO", RESP2)
            self._id = self.wakeups.call("CLIENT", "ID")
            # Without the permission, better fail now than when the first list is empty.
            self.commands.call("CLIENT", "TRACKING", "OFF")
            for channel in (INVALIDATED, self._channel):
                self.wakeups.call("SUBSCRIBE", channel)
        except BaseException:
            self.close()
            raise

    def ask(
        self,
        lists: Sequence[MessageList],
        width: int,
        limit: int,
        take: Callable[[Fetched], None],
        *,
        turns: bool,
        before: Sequence[Call] = (),
    ) -> None:
        """Ask for up to *limit* messages of *lists*, in this order, *width* of them for each priority.

        *take* gets the messages once they have arrived. With *turns*, the lists of one priority take turns. The calls
        *before* are sent first.
        """
        calls = list(before)
        line = self._line_of(lists)
        if self._line is not None and self._line != line:
            calls.append(self._leaving(self._line))
        self._line = line
        if self._tracking:
            self._tracking = False
            calls.append(Call(("CLIENT", "TRACKING", "OFF"), _check))
        since, tag = time.monotonic(), f"{os.urandom(12).hex()}-"

        def answered(reply: Any) -> None:
            self.asked = None
            score, idle, listens, *found = _check(reply)
            rows = zip(found[::2], found[1::2], strict=True)
            messages = [(number - 1, item, f"{tag}{n}") for n, (number, item) in enumerate(rows, 1)]
            if messages:
                self.is_due = True
                take(Fetched(since, float(score), messages))
            elif listens:
                self._listen(lists)
            else:
                self._look_in(LOOK * max(1.0, idle / SHORT))

        keys = (4, self._in_flight.index, self._in_flight.records, *line)
        options = (0, limit, tag, self._channel, int(self._missed), int(turns), width)
        # kombu's format: exchange and routing key follow the message.
        named = (part for row in lists for part in (row.key, f'"", {json.dumps(row.queue)}'))
        calls.append(self.commands.script(self._script, (*keys, *options, *named), answered))
        self.is_due = self._missed = False
        self.asked = Asked(tag, limit)
        self.look_at = math.inf
        self.commands.send(calls)

    def wake_up(self) -> None:
        """Read all wake-ups that have arrived; a fetch is due then."""
        while (push := self.wakeups.next_push()) is not None:
            if _check(push)[0] == b"pong":
                self._pinged = False
            else:
                self._become_due()

    def look(self) -> None:
        """Look for messages if it is time; check that both connections are alive."""
        self.commands.check_deadline()
        self.wake_up()
        now = time.monotonic()
        if now < self.look_at:
            return
        if now >= self._ping_at:
            if self._pinged:
                raise redis.TimeoutError("Redis did not answer on the connection of wake-ups")
            self._pinged, self._ping_at = True, now + self._longest_look
            self.wakeups.ping()
        self._become_due()
        self._missed = True

    @property
    def next_look(self) -> float:
        """When :meth:`look` has to be called, on the monotonic clock."""
        return min(self.look_at, self.commands.deadline)

    def leave(self) -> None:
        """Leave the line, and wake the next worker if this one was the listener."""
        if self._line is not None:
            self.commands.send([self._leaving(self._line)])
            self._line = None

    def close(self) -> None:
        """Close the connections; messages in a lost reply are put back when their leases end."""
        self.commands.close()
        self.wakeups.close()

    def _become_due(self) -> None:
        self.is_due = True
        self.look_at = math.inf

    def _listen(self, lists: Sequence[MessageList]) -> None:
        """Let Redis notify this worker when one of *lists* changes."""

        def exists(reply: Any) -> None:
            if _check(reply):
                self._become_due()

        self._tracking = True
        self._look_in(self._longest_look)
        # EXISTS makes Redis track the lists, and finds messages that arrived after the script.
        tracking = ("CLIENT", "TRACKING", "ON", "REDIRECT", self._id, "NOLOOP")
        self.commands.send([Call(tracking, _check_tracking), Call(("EXISTS", *(row.key for row in lists)), exists)])

    def _look_in(self, seconds: float) -> None:
        # Not all at the same time.
        self.look_at = time.monotonic() + min(seconds, self._longest_look) * random.uniform(0.8, 1)

    def _line_of(self, lists: Sequence[MessageList]) -> tuple[bytes, bytes]:
        queues = sorted({row.queue for row in lists})
        name = hashlib.sha1("\n".join(queues).encode(), usedforsecurity=False).hexdigest()
        return idle_line(self._prefix, name), idle_listener(self._prefix, name)

    def _leaving(self, line: tuple[bytes, bytes]) -> Call:
        return self.commands.script(self._leave, (2, *line, self._channel), _check)


def _check(reply: Any) -> Any:
    if isinstance(reply, Exception):
        error = translate(reply)
        if isinstance(error, StoreUnavailableError) and not lacks_permission(reply):
            # For Celery it is a lost connection: it connects again, while other errors end a worker.
            raise error from reply
        raise reply
    return reply


def _check_tracking(reply: Any) -> None:
    if isinstance(reply, Exception) and "redirect" in str(reply):
        raise redis.ConnectionError(f"the connection of wake-ups was closed ({reply})") from reply
    _check(reply)
