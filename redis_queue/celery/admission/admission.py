"""Admission: take messages of flows from the store, as many as a worker can start."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import redis
from celery.worker import state

from redis_queue.admission.flows import route_of
from redis_queue.basics.times import monotonic
from redis_queue.celery.kombu.keys import InFlightKeys
from redis_queue.celery.message.headers import FlowHeader
from redis_queue.store.async_connection import AsyncCall, AsyncConnection, value_of
from redis_queue.store.keys import FlowKeys
from redis_queue.store.links import Argument
from redis_queue.store.redis_errors import is_refused
from redis_queue.store.script_files import Script, load

MARK: Final = "flow-"
"""How the delivery tags of messages with a place in a flow begin."""

RECENT: Final = 0.01
"""Seconds: a worker takes messages ahead only if each of its processes ended several in this time: longer
tasks would hold places while they wait."""

SHORT_TASKS: Final = 4
"""Tasks of one process that ended in RECENT seconds, from which on they are short."""

MAX_AHEAD: Final = 500
"""Maximum number of messages that a worker without a prefetch count takes ahead."""

SCAN: Final = 1000

TURNS: Final = 1000
"""Any number larger than that of tasks with flows in one queue."""


def processes_of(consumer: Any) -> int:
    """Return how many tasks the worker of *consumer* can run: with --autoscale, as many as its pool grows to.

    Celery adds processes only for messages that the worker has received.
    """
    autoscaler = getattr(consumer.controller, "autoscaler", None)
    return max(consumer.pool.num_processes or 1, getattr(autoscaler, "max_concurrency", 0))


def has_place(tag: str) -> bool:
    """Return whether the message with this delivery tag has a place in a flow."""
    return tag.startswith(MARK)


def tag_of(first: str, number: int) -> str:
    """Return a delivery tag; those of one fetch are in the order of their numbers, as sweeps return them."""
    return f"{first}{number:03}"


@dataclass(frozen=True, slots=True)
class AdmissionKeys:
    """The keys that scripts of flows take, by name: those of messages in flight, and those of flows."""

    in_flight: InFlightKeys
    flows: FlowKeys

    def of(self, script: Script, **others: bytes) -> list[bytes]:
        """Return the keys of *script*, in order; *others* by name."""
        named = self.in_flight.by_name | others
        return [named.get(name) or getattr(self.flows, name) for name in script.keys]


class Ends:
    """How many tasks ended lately."""

    def __init__(self) -> None:
        self._since, self._count, self._before = 0.0, 0, 0

    def note(self) -> None:
        """Record that a task ended."""
        self._turn()
        self._count += 1

    def recent(self) -> int:
        """Return how many tasks ended within about RECENT seconds."""
        self._turn()
        return max(self._count, self._before)

    def _turn(self) -> None:
        now = monotonic()
        if now - self._since >= RECENT:
            self._before = self._count if now - self._since < 2 * RECENT else 0
            self._since, self._count = now, 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """*free*: processes or threads without a task. *room*: messages that start soon, of *window* in all."""

    free: int
    room: int
    window: int

    @property
    def is_worth_asking(self) -> bool:
        """Whether to ask for messages now: a process waits, or there is room for half of the window."""
        return self.free > 0 or 2 * self.room >= self.window


@dataclass(frozen=True, slots=True)
class FlowReply:
    """Reply of the script: see lua/admission/take.lua. *messages* are numbers of queues, from 0, and messages."""

    score: float
    left: bool
    next_in: float
    signals: bytes
    peers: int
    missing: list[bytes]
    messages: list[tuple[int, bytes]]

    @classmethod
    def of(cls, reply: Any) -> FlowReply:
        """Read the *reply* of the script."""
        score, left, next_in, signals, peers, lost, *rest = reply
        rows = rest[lost:]
        messages = [(number - 1, item) for number, item in zip(rows[::2], rows[1::2], strict=True)]
        return cls(
            float(score),
            bool(left),
            next_in / 1000 if next_in >= 0 else math.inf,
            signals,
            peers,
            rest[:lost],
            messages,
        )


@dataclass(frozen=True, slots=True)
class FlowRequest:
    """Request for up to *limit* messages of flows, *at_once* if others are idle, which settles the tags *settled*.

    *on_settled* gets the tags that were not in flight, or an exception if Redis refused; *on_reply* gets the messages.
    """

    limit: int
    at_once: int
    settled: Sequence[str]
    on_settled: Callable[[Any], None]
    on_reply: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Move:
    """A message of a flow that is in flight, by its delivery tag, and the group in which it waits."""

    tag: str
    task_id: str
    item: bytes
    queue: str
    step: int
    header: FlowHeader

    def arguments(self, record: bytes, *, last: bool, ended: bool = False) -> dict[str, Argument]:
        """Return the arguments of the script that lets it wait in place of its *record*; *last*: behind its group.

        *ended*: only if its lease has ended.
        """
        return {
            "now": 0,
            "tag": self.tag,
            "record": record,
            "ended": int(ended),
            "last": int(last),
            "step": self.step,
            "queue": self.queue,
            "task": self.header.task,
            "of_task": self.header.of_task,
            "of_queue": self.header.of_queue,
            "message": self.header.element(self.task_id, self.item),
        }


def task_id_of(payload: Any) -> str:
    """Return the task id in a message as kombu keeps it; "" for none."""
    # Messages of protocol 1 have it only here.
    found = payload["headers"].get("id") or payload["properties"].get("correlation_id")
    return found if isinstance(found, str) else ""


class Admission:
    """Admission of messages of flows to one worker, with *processes()* processes or threads. Does no I/O by itself.

    *here*: whether they are in the Redis from which the worker fetches.
    """

    def __init__(
        self, keys: AdmissionKeys, processes: Callable[[], int], *, in_use: bool = False, here: bool = True
    ) -> None:
        self.keys = keys
        self.processes = processes
        self.here = here
        self._take, self._restore = load("admission/take"), load("admission/restore")
        #: Whether there are flows.
        self.in_use = in_use
        #: Whether there are messages that could be taken if this worker had a process free.
        self.left = False
        #: When the next message may be taken, on the monotonic clock.
        self.next_at = math.inf
        #: Value of the signals of all queues when they were last read.
        self.signals = b""
        self.ends = Ends()
        #: Other workers with the same queues that were idle at the last call.
        self.peers = 0

    @property
    def competes(self) -> bool:
        """Whether messages of flows wait that this worker may take now or soon: it takes nothing ahead then."""
        return self.in_use and (self.left or self.next_at < math.inf)

    def capacity(self, received: int, most: int = 0) -> Capacity:
        """Return how many messages this worker can start; *received* ones wait in it besides those of Celery.

        *most*: its prefetch count, 0 for none.
        """
        processes = self.processes()
        recent = self.ends.recent()
        window = max(processes, min(recent, most or MAX_AHEAD)) if recent >= SHORT_TASKS * processes else processes
        held = len(state.reserved_requests) + received
        return Capacity(free=processes - held, room=window - held, window=window)

    def take(
        self,
        connection: AsyncConnection,
        queues: Sequence[str],
        request: FlowRequest,
        on_reply: Callable[[FlowReply | Exception], None],
        *,
        line: tuple[bytes, bytes],
        channel: str,
    ) -> tuple[str, AsyncCall]:
        """Return the first part of the delivery tags, and the call that makes the *request*.

        *line* are the keys of the line of idle workers and of its listener, *channel* is that of this worker.
        """
        tag = f"{MARK}{os.urandom(12).hex()}-"
        keys = self.keys.of(self._take, line=line[0], listener=line[1])
        named = (part for queue in queues for part in (queue, route_of(queue)))
        turn, lease = random.randrange(TURNS), self.keys.in_flight.lease_ms
        options = (0, request.limit, request.at_once, tag, channel, turn, len(request.settled), lease)
        arguments: tuple[Argument, ...] = (len(keys), *keys, *options, *request.settled, *named)
        return tag, connection.script(self._take, arguments, partial(self._read_reply, request, on_reply))

    def _read_reply(self, request: FlowRequest, on_reply: Callable[[FlowReply | Exception], None], reply: Any) -> None:
        if isinstance(reply, Exception):
            request.on_settled(reply)
            on_reply(reply)
            return
        found = FlowReply.of(reply)
        self.left, self.signals, self.peers = found.left, found.signals, found.peers
        self.next_at = monotonic() + found.next_in
        request.on_settled(found.missing)
        on_reply(found)

    def put_behind(self, connection: AsyncConnection, move: Move) -> AsyncCall:
        """Return the call that moves a message, which was fetched from a list, to those that wait."""
        self.in_use = True
        record = b"[" + move.item + b", " + route_of(move.queue).encode() + b"]"
        keys, named = self.keys.of(self._restore), move.arguments(record, last=True)
        arguments = (len(keys), *keys, *(named[name] for name in self._restore.arguments))
        return connection.script(self._restore, arguments, value_of)

    def watch(self, queues: Sequence[str], on_change: Callable[[], None]) -> AsyncCall:
        """Return the call that lets Redis track the signals of *queues*; *on_change* is called if they have changed."""

        def compared(reply: Any) -> None:
            found = b" ".join(value or b"" for value in value_of(reply))
            # Before the first flow there are no signals.
            if found != self.signals and (self.signals or found.strip()):
                on_change()

        return AsyncCall(("MGET", *(self.keys.flows.signal(queue) for queue in queues)), compared)


def places_without_message(keys: AdmissionKeys, client: redis.Redis) -> list[str]:
    """Return the delivery tags that have a place, but are not in flight: a stock worker returned their messages.

    While the broker of an app changes, its flows have workers of both kinds.
    """
    found: list[str] = []
    cursor: Any = 0
    while True:
        cursor, rows = client.hscan(keys.flows.held.decode(), cursor, count=SCAN)
        tags = [tag.decode(errors="replace") if isinstance(tag, bytes) else str(tag) for tag in rows]
        found += _not_in_flight(keys, client, tags)
        if not int(cursor):
            # A scan may return a tag twice, which would free two places.
            return list(dict.fromkeys(found))


def _not_in_flight(keys: AdmissionKeys, client: redis.Redis, tags: list[str]) -> list[str]:
    own = keys.in_flight.index
    for index in (own, *keys.flows.indexes):
        try:
            scores = client.zmscore(index, tags) if tags else []
        except redis.ResponseError as error:
            if index == own or not is_refused(error):
                raise
            # Workers of another broker may have them.
            return []
        tags = [tag for tag, score in zip(tags, scores, strict=True) if score is None]
    return tags
