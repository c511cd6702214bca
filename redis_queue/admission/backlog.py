"""Backlog: the messages of flows that wait for a place: how many, since when, and how to delete or move them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final

from redis_queue.admission.flow_keys import scored, whole_number
from redis_queue.admission.flows import OF_QUEUE
from redis_queue.store.chunks import chunks, rows_of
from redis_queue.store.ids import id_bytes, id_text
from redis_queue.store.keys import FlowKeys
from redis_queue.store.scripts import Clock, NumberedCalls, Scripts, literal, pairs, server_clock

MAX_GROUPS: Final = 400
"""Maximum number of groups of messages whose oldest message is read."""

FIELDS: Final = 2000
"""Maximum number of queues of one command."""

SCAN: Final = 1000
"""Groups, of any queue, that one command looks at to find those of one queue."""

ALL: Final = 1 << 53
"""More messages than there are."""

PURGED: Final = 50
"""Maximum number of groups of one call that deletes; as MAX_GROUPS in the script."""


class Backlog:
    """Messages that wait for a place in the flows with these *keys*. All methods raise StoreError."""

    def __init__(self, scripts: Scripts, keys: FlowKeys, clock: Clock = server_clock) -> None:
        self.scripts = scripts
        self._keys = keys
        self._clock = clock
        self._calls = NumberedCalls(scripts, keys)
        # Not messages in flight: of these, the script only tells the number.
        self._depth = scripts.bind("broker/depth", None, unacked=self._keys.held)

    def of_queues(self, queues: Sequence[str]) -> list[int]:
        """Return how many messages of each queue wait for a place, also those that have only the flow of their task."""
        found: list[int] = []
        for chunk in chunks(queues, FIELDS):
            fields = [f"{OF_QUEUE}{queue}".encode() for queue in chunk]
            found += map(whole_number, self.scripts.command("HMGET", self._keys.backlog, *fields))
        return found

    def all(self) -> dict[str, int]:
        """Return how many messages wait, by flow; queues have an entry even without a flow of their own."""
        rows = self.scripts.command("HGETALL", self._keys.backlog)
        return {id_text(flow): count for flow, value in pairs(rows) if (count := whole_number(value))}

    def oldest(self) -> dict[str, float]:
        """Return when the oldest waiting message of flows was sent, or due if it was delayed: seconds since the epoch.

        Queues have an entry even without a flow of their own. Of more than :data:`MAX_GROUPS` keys with messages, only
        those count that have had some for the longest time. Two round trips.
        """
        rows = self.scripts.command("ZRANGE", self._keys.oldest, 0, MAX_GROUPS - 1, "WITHSCORES")
        groups = [group for group, _ in scored(rows)]
        if not groups:
            return {}
        _, *counts = self._depth(limit=-1, more=list(map(self.messages, groups)))
        found: dict[str, float] = {}
        for group, (_, sent, due) in zip(groups, rows_of(counts, 3), strict=True):
            at = sent_at(sent, due)
            if at is not None:
                for flow in _flows_of(id_text(group)):
                    found[flow] = min(at, found.get(flow, at))
        return found

    def groups(self) -> int:
        """Return how many groups of messages wait."""
        return int(self.scripts.command("ZCARD", self._keys.oldest))

    def oldest_groups(self, first: int, limit: int) -> list[bytes]:
        """Return up to *limit* groups of all queues, after the *first* ones, longest-waiting first."""
        found: list[bytes] = self.scripts.command("ZRANGE", self._keys.oldest, first, first + limit - 1)
        return found

    def messages(self, group: bytes) -> bytes:
        """Return the key of the list of *group*."""
        return self._keys.messages("") + group

    def remove(self, group: bytes, target: str | None, found: Sequence[bytes | int]) -> bytes:
        """Delete messages of *group*, or let them wait in the queue *target*; return a flag of each.

        *found*: see lua/admission/remove.lua. Moved ones keep their flows, keys and order, and are behind the others.
        """
        step, queue, task, of_task, of_queue = group.split(b"\0")
        named = {"step": step, "task": task, "of_task": of_task, "of_queue": of_queue}
        to = queue if target is None else id_bytes(target)
        call = self._calls.prepare("admission/remove", now=self._clock(), source=group, queue=to, **named, more=found)
        flags: bytes = call()
        return flags

    def purge(self, queue: str, limit: int) -> Iterator[int]:
        """Delete up to *limit* messages of *queue*, those of some keys first; yield the number of each batch.

        What is in flight keeps its place, and the keys of unique tasks whose messages are deleted are free. Messages
        that are sent meanwhile may stay.
        """
        for page in self._groups(f"?\0{literal(queue)}\0*"):
            for count, _ in self._take_out([(group, b"", b"") for group in page], limit):
                limit -= count
                yield count
            if limit <= 0:
                return

    def move(self, target: Callable[[str, int], tuple[str, str]]) -> Iterator[int]:
        """Move all messages that may run into other lists of this Redis, oldest first; yield the number of each batch.

        *target* takes a queue and a step of priority, and returns the list, and the JSON of exchange and routing key
        that is recorded with each message, or "" for the message alone. The keys of unique tasks are free then.
        """
        for page in self._groups("*"):
            rows = []
            for group in page:
                step, queue, *_ = [*id_text(group).split("\0"), ""]
                name, route = target(queue, int(step) if step.isdecimal() else 0)
                rows.append((group, id_bytes(name), id_bytes(route)))
            yield from (moved for _, moved in self._take_out(rows) if moved)

    def _take_out(self, rows: Sequence[tuple[bytes, bytes, bytes]], limit: int = ALL) -> Iterator[tuple[int, int]]:
        """Yield the number of messages of each batch, and how many of them were moved."""
        while rows and limit > 0:
            more = [part for row in rows[:PURGED] for part in row]
            reply = self._calls.prepare("admission/purge", now=self._clock(), limit=limit, more=more)()
            count, done, moved = map(int, reply.split())
            rows = rows[done:]
            limit -= count
            if count:
                yield count, moved

    def groups_of(self, flow: str, key: str) -> Iterator[list[bytes]]:
        """Yield the groups with messages of one key, some at a time; O(groups of all keys)."""
        end = literal(key)
        if flow.startswith(OF_QUEUE):
            return self._groups(f"?\0{literal(flow.removeprefix(OF_QUEUE))}\0*\0*\0{end}")
        return self._groups(f"?\0*\0{literal(flow)}\0{end}\0*")

    def _groups(self, like: str) -> Iterator[list[bytes]]:
        """Yield the groups with messages that match, some at a time; a deletion meanwhile hides none of the others."""
        for page in self.scripts.scan("ZSCAN", self._keys.oldest, match=like, count=SCAN):
            yield [group for group, _ in page]


def sent_at(sent: bytes, due: bytes) -> float | None:
    """Return the seconds since the epoch when a message was sent, or due, from the texts of the script broker/depth."""
    times = [int(sent) / 1000] if 0 < len(sent) < 16 else []  # noqa: PLR2004 - milliseconds
    with contextlib.suppress(ValueError, OverflowError, OSError):
        at = datetime.fromisoformat(due.decode())
        times += [at.timestamp()] if at.tzinfo is not None else []
    return max(times, default=None)


def _flows_of(group: str) -> list[str]:
    _, queue, task, *_ = [*group.split("\0"), "", ""]
    return [f"{OF_QUEUE}{queue}", *([task] if task else [])]
