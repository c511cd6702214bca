"""Backlog: the messages of flows that wait for a place: how many, since when, and how to delete or move them."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from redis_queue.admission.flow_keys import scored, whole_number
from redis_queue.admission.flows import OF_QUEUE
from redis_queue.admission.rules import KeyState
from redis_queue.basics.times import iso_time
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

STEPS: Final = 10
"""Number of steps of a priority."""

OTHERS: Final = 5
"""Maximum number of tasks of a queue, or of queues of a task, whose messages are looked for."""

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
                _, queue, task, *_ = [*id_text(group).split("\0"), "", ""]
                for flow in filter(None, (f"{OF_QUEUE}{queue}", task)):
                    found[flow] = min(at, found.get(flow, at))
        return found

    def since(self, flow: str, keys: Sequence[KeyState]) -> dict[str, float]:
        """Return when the first waiting message of each of *keys* was sent, or due: seconds since the epoch.

        It is known for keys all of whose messages have the task and queue with most of those that wait, and no key, or
        the same, of the other flow. O(keys + flows).
        """
        found: dict[str, float] = {}
        lists, complete = self._likely_lists(flow, keys)
        for _, key, at in lists:
            if key in complete and at is not None:
                found[key] = min(at, found.get(key, at))
        return found

    def _likely_lists(
        self, flow: str, keys: Sequence[KeyState]
    ) -> tuple[list[tuple[bytes, str, float | None]], set[str]]:
        """Return groups of *keys* with the time of their first message, and the keys that have no other groups."""
        waiting = {state.key: state.waiting for state in keys}
        groups = self._likely_groups(flow, [key for key, count in waiting.items() if count])
        scores: list[Any] = []
        for chunk in chunks(groups, FIELDS):
            scores += self.scripts.command("ZMSCORE", self._keys.oldest, *(group for group, _ in chunk))
        lists = [row for row, score in zip(groups, scores, strict=True) if score is not None]
        found = []
        for rows in chunks(lists, MAX_GROUPS):
            _, *counts = self._depth(limit=-1, more=[self.messages(group) for group, _ in rows])
            for (group, key), (length, sent, due) in zip(rows, rows_of(counts, 3), strict=True):
                waiting[key] -= length
                found.append((group, key, sent_at(sent, due)))
        return found, {key for key, count in waiting.items() if count <= 0}

    def _likely_groups(self, flow: str, keys: Sequence[str]) -> list[tuple[bytes, str]]:
        """Return groups in which messages of *keys* may wait, each with its key."""
        is_queue, counts = flow.startswith(OF_QUEUE), self.all() if keys else {}
        others = [name for name in counts if name.startswith(OF_QUEUE) != is_queue and name != flow]
        others = [*([""] if is_queue else []), *heapq.nlargest(OTHERS, others, key=lambda name: counts[name])]
        found: dict[bytes, str] = {}
        for step, other, key in itertools.product(range(STEPS), others, keys):
            for of_other in ("", key) if other else ("",):
                ends = (flow, other, of_other, key) if is_queue else (other, flow, key, of_other)
                found[id_bytes("\0".join((str(step), ends[0].removeprefix(OF_QUEUE), *ends[1:])))] = key
        return list(found.items())

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
        named: dict[str, Any] = {"step": step, "task": task, "of_task": of_task, "of_queue": of_queue}
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

    def groups_of(self, flow: str, state: KeyState) -> list[bytes]:
        """Return the groups with messages of one key; O(groups of all keys) unless all are those that are likely."""
        lists, complete = self._likely_lists(flow, [state])
        if complete:
            return sorted(group for group, _, _ in lists)
        key, name = literal(state.key), literal(flow.removeprefix(OF_QUEUE))
        like = f"?\0{name}\0*\0{key}" if flow.startswith(OF_QUEUE) else f"?\0*\0{name}\0{key}\0*"
        return sorted({group for page in self._groups(like) for group in page})

    def _groups(self, like: str) -> Iterator[list[bytes]]:
        """Yield the groups with messages that match, some at a time; a deletion meanwhile hides none of the others."""
        for page in self.scripts.scan("ZSCAN", self._keys.oldest, match=like, count=SCAN):
            yield [group for group, _ in page]


def sent_at(sent: bytes, due: bytes) -> float | None:
    """Return the seconds since the epoch when a message was sent, or due, from the texts of the script broker/depth."""
    times = [int(sent) / 1000] if 0 < len(sent) < 16 else []  # noqa: PLR2004 - milliseconds
    at = iso_time(due.decode(errors="replace"))
    return max(times if at is None else [*times, at.timestamp()], default=None)
