"""Fetch: takes messages out of their lists and records them as in flight, in one step, and waits for more.

kombu waits in BRPOP and records the message afterwards; a worker that is killed in between loses it. A script takes and
records messages in one step, but cannot wait for them. So idle workers with the same queues stand in a line, in Redis.
One of them, the listener, is notified when a list changes (CLIENT TRACKING); it fetches, and the script wakes the next
one by a message on its channel. A worker in the line looks for messages by itself now and then, so that a listener that
died or hangs is replaced.
"""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, NamedTuple

import redis

from redis_queue.admission.flows import route_of
from redis_queue.basics.times import monotonic
from redis_queue.celery.admission.admission import Admission, FlowReply, FlowRequest, tag_of
from redis_queue.store.async_connection import AsyncCall, AsyncConnection, value_of
from redis_queue.store.keys import BrokerKeys
from redis_queue.store.script_files import load

INVALIDATED: Final = "__redis__:invalidate"

RESP2: Final = 2
"""Protocol version in which a subscribed connection answers PING and receives no other pushes."""

CHECK_INTERVAL: Final = 0.9
"""Maximum seconds between two looks of a worker in a short line: what a listener that died costs at most."""

SHORT_LINE: Final = 20
"""Workers in a short line. In longer ones each looks less often: together about 22 times a second."""

LISTS_WITHIN: Final = 0.005
"""Maximum seconds between two checks of empty lists while messages of flows wait."""

MAX_LOOK: Final = 10.0
"""Maximum seconds between two looks of any idle worker, the listener among them."""


class MessageList(NamedTuple):
    """One list of a queue: its key, and the queue."""

    key: str
    queue: str


class PendingFetch(NamedTuple):
    """A fetch without a reply: the first part of its delivery tags, which a number from 1 follows, and its limit."""

    tag: str
    limit: int


class FetchReply(NamedTuple):
    """Result of one fetch: when its leases began (*since*: monotonic clock, *score*: Redis clock), and the messages.

    A message is its queue, its bytes and its delivery tag.
    """

    since: float
    score: float
    messages: list[tuple[str, bytes, str]]


class ListRequest(NamedTuple):
    """Request for up to *limit* messages from *lists*, in this order, one for each of *queues* and each priority.

    With *turns*, the lists of one priority take turns. *on_reply* gets the messages once they have arrived.
    """

    lists: Sequence[MessageList]
    queues: Sequence[str]
    limit: int
    turns: bool
    on_reply: Callable[[FetchReply], None]


class Fetch:
    """Takes messages on one connection; another one is subscribed to wake-ups. *prefix* begins all keys of the broker.

    Raises the errors of redis-py.
    """

    def __init__(self, client: redis.Redis, admission: Admission, prefix: str, longest_look: float) -> None:
        self._script, self._leave = load("broker/fetch"), load("broker/leave")
        self._admission = admission
        self._keys = BrokerKeys(prefix)
        self._longest_look = min(MAX_LOOK, longest_look)
        self._channel = self._keys.wake_channel(os.urandom(8).hex())
        #: Whether there may be messages to fetch.
        self.is_due = True
        #: The fetch from lists that is not answered yet.
        self.pending: PendingFetch | None = None
        #: The fetch of messages of flows that is not answered yet.
        self.pending_flows: PendingFetch | None = None
        #: When an idle worker looks for messages without a wake-up, on the monotonic clock.
        self.look_at = math.inf
        self._missed = False
        #: Whether the last fetch found messages in lists.
        self.lists_had_messages = False
        self._lists_at = -math.inf
        self._when_idle: Callable[[], None] | None = None
        self._tracking = False
        self._line: tuple[bytes, bytes] | None = None
        self._pinged = False
        self._ping_at = monotonic() + self._longest_look
        with ExitStack() as after_errors:
            self.commands = AsyncConnection(client)
            after_errors.callback(self.commands.close)
            self.wakeups = AsyncConnection(client)
            after_errors.callback(self.wakeups.close)
            if self.wakeups.protocol != RESP2:
                self.wakeups.call("HELLO", RESP2)
            self._id = self.wakeups.call("CLIENT", "ID")
            # Refused, better fail now than when the first list is empty.
            self.commands.call("CLIENT", "TRACKING", "OFF")
            for channel in (INVALIDATED, self._channel):
                self.wakeups.call("SUBSCRIBE", channel)
            after_errors.pop_all()

    def send(self, request: ListRequest, flow_request: FlowRequest | None, *, before: Sequence[AsyncCall]) -> None:
        """Make the calls *before*, stop listening, and ask for messages, in one round trip.

        While messages of flows wait, lists that were empty a moment ago are not asked.
        """
        line = self._line_of(request.queues)
        calls = [*before, *self._stop_listening(line)]
        waits = flow_request is not None and not self.lists_had_messages and self._admission.competes
        if not waits or monotonic() >= self._lists_at + LISTS_WITHIN:
            calls.append(self._take_of_lists(line, request))
        if flow_request is not None:
            # After the lists: a worker that has taken messages of flows is no longer idle.
            calls.append(self._take_of_flows(line, request.queues, flow_request))
        self.is_due = False
        self.look_at = math.inf
        self.commands.send(calls)

    def _stop_listening(self, line: tuple[bytes, bytes]) -> Iterator[AsyncCall]:
        """Yield the calls that end waiting; *line* is the one of the next wait."""
        if self._line is not None and self._line != line:
            yield self._leaving(self._line)
        self._line = line
        if self._tracking:
            self._tracking = False
            yield AsyncCall(("CLIENT", "TRACKING", "OFF"), value_of)

    def _take_of_lists(self, line: tuple[bytes, bytes], request: ListRequest) -> AsyncCall:
        since, tag = monotonic(), f"{os.urandom(12).hex()}-"
        keys = self._admission.keys.of(self._script, line=line[0], listener=line[1])
        lease = self._admission.keys.in_flight.lease_ms
        turns, queues = int(request.turns), len(request.queues)
        options = (0, request.limit, tag, self._channel, int(self._missed), turns, queues, lease)
        # kombu's format: exchange and routing key follow the message.
        named = (part for row in request.lists for part in (row.key, route_of(row.queue)))
        self.pending, self._lists_at, self._missed = PendingFetch(tag, request.limit), since, False
        on_reply = partial(self._read_lists, request, tag, since)
        return self.commands.script(self._script, (len(keys), *keys, *options, *named), on_reply)

    def _read_lists(self, request: ListRequest, tag: str, since: float, reply: Any) -> None:
        self.pending = None
        score, idle, listens, flags, *found = value_of(reply)
        had_flows = self._admission.in_use
        self._admission.in_use = had_flows or bool(flags and self._admission.here)
        rows = enumerate(zip(found[::2], found[1::2], strict=True), 1)
        messages = [(request.lists[number - 1].queue, item, tag_of(tag, n)) for n, (number, item) in rows]
        self.lists_had_messages = bool(messages)
        if messages:
            self.is_due = True
            request.on_reply(FetchReply(since, float(score), messages))
        elif self._admission.in_use and not had_flows:
            # This fetch did not ask for those of flows.
            self._become_due()
        else:
            paused = {int(number) - 1 for number in flags.split()[1:]}
            open_lists = [row for number, row in enumerate(request.lists) if number not in paused]
            look = partial(self._look_in, CHECK_INTERVAL * max(1.0, idle / SHORT_LINE))
            self._when_idle = partial(self._listen, open_lists, request.queues) if listens else look
            if self.pending_flows is None:
                self._rest()

    def _take_of_flows(self, line: tuple[bytes, bytes], queues: Sequence[str], request: FlowRequest) -> AsyncCall:
        since, alone = monotonic(), self.pending is None

        def taken(reply: FlowReply | Exception) -> None:
            self.pending_flows = None
            if isinstance(reply, Exception):
                value_of(reply)
            elif not reply.messages and alone:
                # There may be some in lists.
                self._lists_at = -math.inf
                self._become_due()
            elif not reply.messages:
                self._rest()
            else:
                # The script has ended its idleness.
                self.is_due, self._when_idle = True, None
                rows = enumerate(reply.messages, 1)
                messages = [(queues[number], item, tag_of(tag, n)) for n, (number, item) in rows]
                request.on_reply(FetchReply(since, reply.score, messages))

        tag, call = self._admission.take(self.commands, queues, request, taken, line=line, channel=self._channel)
        self.pending_flows = PendingFetch(tag, request.limit)
        return call

    @property
    def is_asking(self) -> bool:
        """Whether a reply with messages may come."""
        return self.pending is not None or self.pending_flows is not None

    def wake_up(self) -> None:
        """Read all wake-ups that have arrived; a fetch is due then."""
        while (push := self.wakeups.next_push()) is not None:
            if value_of(push)[0] == b"pong":
                self._pinged = False
            else:
                self._become_due()

    def look(self) -> None:
        """Look for messages if it is time; check that both connections are alive."""
        self.commands.check_deadline()
        self.wake_up()
        now = monotonic()
        if now >= self._admission.next_at:
            # A message waits for this time.
            self._admission.next_at = math.inf
            self._become_due()
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
        return min(self.look_at, self.commands.deadline, self._admission.next_at)

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

    def _rest(self) -> None:
        """Wait for a wake-up if neither lists nor flows had a message."""
        wait, self._when_idle = self._when_idle, None
        if wait is not None:
            wait()

    def _listen(self, lists: Sequence[MessageList], queues: Sequence[str]) -> None:
        """Have Redis notify this worker when one of *lists* changes, or a flow message in *queues* may be taken."""

        def exists(reply: Any) -> None:
            if value_of(reply):
                self._become_due()

        self._tracking = True
        self._look_in(self._longest_look)
        # EXISTS makes Redis track the lists, and finds messages that arrived after the script.
        tracking = ("CLIENT", "TRACKING", "ON", "REDIRECT", self._id, "NOLOOP")
        calls = [AsyncCall(tracking, _check_tracking), self._admission.watch(queues, self._become_due)]
        if lists:
            calls.append(AsyncCall(("EXISTS", *(row.key for row in lists)), exists))
        self.commands.send(calls)

    def _look_in(self, seconds: float) -> None:
        # Not all at the same time.
        self.look_at = monotonic() + min(seconds, self._longest_look) * random.uniform(0.8, 1)

    def _line_of(self, queues: Sequence[str]) -> tuple[bytes, bytes]:
        name = hashlib.sha1("\n".join(sorted(queues)).encode(), usedforsecurity=False).hexdigest()
        return self._keys.line(name), self._keys.listener(name)

    def _leaving(self, line: tuple[bytes, bytes]) -> AsyncCall:
        return self.commands.script(self._leave, (2, *line, self._channel), value_of)


def _check_tracking(reply: Any) -> None:
    if isinstance(reply, Exception) and "redirect" in str(reply):
        raise redis.ConnectionError(f"the connection of wake-ups was closed ({reply})") from reply
    value_of(reply)
