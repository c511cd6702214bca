"""Which dead letters are meant, and what may be done with them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.inspector import AnyQueue
from redis_queue.model import DeadLetter, Entry, Unread
from redis_queue.operate.faults import Faults
from redis_queue.operate.pages import (
    LOOK_BYTES,
    MOST_FULL_LOOKS,
    MOST_LOOKED_AT,
    Found,
    Page,
    items_within_budget,
    through,
)
from redis_queue.operate.scan import Scan
from redis_queue.store.chunks import CHUNK

Pair = tuple[AnyQueue, str]
"""A queue and an id."""

Place = tuple[int, int]
"""Which queue of a sequence, and how many of its letters to pass over."""


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
        self, queues: Sequence[AnyQueue], faults: Faults, scan: Scan | None = None
    ) -> Iterator[Found[DeadLetter]]:
        """Yield matching letters, queue by queue, oldest first, read by pages; *scan* counts all of them."""
        found = through(queues, lambda queue, offset, limit: queue.dead_letters(offset=offset, limit=limit), faults)
        return (pair for pair in found if self.match(pair[1], scan))

    def page(
        self, queues: Sequence[AnyQueue], start: Place | None, limit: int, faults: Faults, scan: Scan | None = None
    ) -> Page[Found[DeadLetter], Place]:
        """Return up to *limit* letters that match from *start* on; looks at no more than :data:`MOST_LOOKED_AT`.

        A queue that cannot be read is noted in *faults*. The bodies of large letters stay in Redis: they match by id
        and reason only. *scan* counts all letters that were looked at.
        """
        number, offset = start or (0, 0)
        found: list[Found[DeadLetter]] = []
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

    def match(self, letter: DeadLetter, scan: Scan | None = None) -> bool:
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


def redrive(pairs: Sequence[Pair], faults: Faults, rate: float | None = None) -> int:
    """Redrive the ids of *pairs*; return how many came back. With *rate*, so many per second in each queue.

    A queue in which that cannot be done is noted in *faults*.
    """
    return _each_queue(pairs, faults, lambda queue, ids: queue.redrive(ids, rate=rate))


def delete(pairs: Sequence[Pair], faults: Faults, until: datetime) -> int:
    """Delete the ids of *pairs* that died by *until*; return how many. Broken queues are noted in *faults*."""
    return _each_queue(pairs, faults, lambda queue, ids: queue.delete_dead(ids, until=until))


def _each_queue(pairs: Sequence[Pair], faults: Faults, act: Callable[[AnyQueue, list[str]], int]) -> int:
    count = 0
    for queue, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        with faults.of_queue(queue):
            count += act(queue, [id_ for _, id_ in group])
    return count
