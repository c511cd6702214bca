"""Dead letters: conditions, pages and actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

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
from redis_queue.operate.queue_row import QueueRow
from redis_queue.operate.search_report import SearchReport
from redis_queue.store.chunks import CHUNK

MOST_QUEUES: Final = 200
"""Most queues that one page reads."""

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


def page_of(
    access: Access,
    conditions: Filter,
    name: str | None,
    start: LetterCursor | None,
    limit: int,
    *,
    faults: Faults,
    scan: SearchReport | None = None,
) -> tuple[Page[InQueue[DeadLetter], LetterCursor], Sequence[QueueRow] | None]:
    """Return letters from *start* on, of the queues called *name* or of all, and the counts of these queues.

    A page covers at most :data:`MOST_QUEUES` queues. With more queues the counts are None, since they would be
    incomplete. Adds unreadable queues to *faults*. Raises InvalidNameError for an unknown name.
    """
    number, offset = start or (0, 0)
    catalog = access.catalog
    if name is None:
        listing = catalog.listing(offset=number, limit=MOST_QUEUES)
        found, after = listing.known, listing.next
    else:
        found, after = catalog.known(name)[number:], None
    rows = access.inspector.queues(found)
    queues: list[AnyQueue] = []
    positions: list[int] = []
    for position, (known, row) in enumerate(zip(found, rows, strict=True), number):
        if row.error:
            faults.add(row)
        elif row.dead:
            with faults.of(known.kind, known.name):
                queues.append(catalog.open(known))
                positions.append(position)
    begins_here = bool(positions) and positions[0] == number
    page = conditions.page(queues, (0, offset if begins_here else 0), limit, faults, scan)
    following: LetterCursor | None = None if after is None else (after, 0)
    if page.next is not None:
        index, rest = page.next
        following = (positions[index], rest)
    return replace(page, next=following), rows if not number and after is None else None
