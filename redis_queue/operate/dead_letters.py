"""Dead letters: conditions, pages and actions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

from redis_queue.catalog import AnyQueue
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.model import DeadLetter, Entry, Unread
from redis_queue.operate.access import Access
from redis_queue.operate.faults import Faults
from redis_queue.operate.pages import (
    LOOK_BYTES,
    MOST_FULL_LOOKS,
    MOST_LOOKED_AT,
    InQueue,
    Page,
    items_within_budget,
    through,
)
from redis_queue.operate.search_report import SearchReport
from redis_queue.operate.verbs import Done, Verb
from redis_queue.store.chunks import CHUNK

Pair = tuple[AnyQueue, str]
"""A queue and an id."""

LetterCursor = tuple[int, int]
"""The number of a queue in a sequence, and of its letters to skip."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions for dead letters; None: any. *task_part* is a part of the task's name, *task* the whole name."""

    reason: str | None = None
    id_prefix: str | None = None
    task: str | None = None
    task_part: str | None = None

    def __bool__(self) -> bool:
        return any(value is not None for value in (self.reason, self.id_prefix, self.task, self.task_part))

    def letters(
        self, queues: Sequence[AnyQueue], faults: Faults, scan: SearchReport | None = None
    ) -> Iterator[InQueue[DeadLetter]]:
        """Yield matching letters, queue by queue, oldest first, read by pages; *scan* counts all of them."""
        found = through(queues, lambda queue, offset, limit: queue.dead_letters(offset=offset, limit=limit), faults)
        return (pair for pair in found if self.match(pair[1], scan))

    def page(
        self,
        queues: Sequence[AnyQueue],
        start: LetterCursor | None,
        limit: int,
        faults: Faults,
        scan: SearchReport | None = None,
    ) -> Page[InQueue[DeadLetter], LetterCursor]:
        """Return up to *limit* letters that match from *start* on; it reads at most :data:`MOST_LOOKED_AT`.

        Errors of a queue are recorded in *faults*. The bodies of large letters stay in Redis: they match by id
        and reason only. *scan* counts all letters that were read.
        """
        number, offset = start or (0, 0)
        found: list[InQueue[DeadLetter]] = []
        looked = unread = spent = 0
        reads = (self.task, self.task_part) != (None, None)
        most_spent = LOOK_BYTES * (MOST_FULL_LOOKS - 1)
        while number < len(queues):
            if len(found) == limit or looked >= MOST_LOOKED_AT or (reads and spent > most_spent):
                return Page(found, (number, offset), looked, unread, spent // LOOK_BYTES)
            listed: Sequence[DeadLetter] = ()
            size = CHUNK if self else min(limit, CHUNK)
            budget = LOOK_BYTES if reads else max(0, LOOK_BYTES - spent)
            with faults.of_queue(queues[number]):
                listed = queues[number].dead_letters(offset=offset, limit=size, max_bytes=budget)
            if not listed:
                number, offset = number + 1, 0
            spent += sum(letter.size for letter in listed if not isinstance(letter.body, Unread))
            letters = items_within_budget(listed, attrgetter("body")) if reads else listed
            for letter in letters:
                looked += 1
                offset += 1
                unread += reads and isinstance(letter.body, Unread)
                if self.match(letter, scan):
                    found.append((queues[number], letter))
                    if len(found) == limit:
                        break
        return Page(found, None, looked, unread, spent // LOOK_BYTES)

    def match(self, letter: DeadLetter, scan: SearchReport | None = None) -> bool:
        """Tell whether *letter* matches; *scan* counts it."""
        # Read the task's name only if needed: it takes time.
        named = (self.task, self.task_part) != (None, None)
        task = task_of(letter) if named else ""
        if scan is not None:
            scan.add(task)
        return (
            (self.reason is None or self.reason in letter.reason)
            and (self.id_prefix is None or letter.id.startswith(self.id_prefix))
            and (self.task is None or task == self.task)
            and (self.task_part is None or self.task_part in task)
        )


def task_of(letter: DeadLetter) -> str:
    """Return the name of the task that *letter* calls; "" if it is none."""
    return as_task(letter).task


def as_task(letter: DeadLetter) -> TaskEntry:
    """Return *letter* as a task."""
    return TaskEntry.of(Entry(letter.id, letter.body, letter.headers, letter.died_at, letter.died_at))


def act_on(
    pairs: Sequence[Pair], verb: Verb, access: Access, faults: Faults, when: datetime | None = None
) -> Iterator[Done]:
    """Run *verb* on *pairs*, queue by queue; errors of a queue are recorded in *faults*."""
    for queue, ids in _by_queue(pairs):
        left = len(ids)
        with faults.of_queue(queue):
            for done in verb.run(access, queue, ids, when):
                left -= done.tried
                yield done
        if left:
            yield Done(0, tried=left)


def redrive_spread(pairs: Sequence[Pair], faults: Faults, rate: float) -> int:
    """Redrive *pairs*, those of each queue at *rate* per second; return how many came back.

    Errors of a queue are recorded in *faults*.
    """
    count = 0
    for queue, ids in _by_queue(pairs):
        with faults.of_queue(queue):
            count += queue.redrive(ids, rate=rate)
    return count


def _by_queue(pairs: Sequence[Pair]) -> Iterator[tuple[AnyQueue, list[str]]]:
    for queue, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        yield queue, [id_ for _, id_ in group]
