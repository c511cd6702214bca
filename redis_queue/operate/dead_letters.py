"""The listing of dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from redis_queue.catalog import AnyQueue
from redis_queue.celery.message.task_entry import Conditions, TaskEntry
from redis_queue.model import DeadLetter, Entry, Unread
from redis_queue.operate.access import Access
from redis_queue.operate.listing import LOOK_BYTES, Chunk, Listing, SearchReport, items_within_budget
from redis_queue.operate.queue_row import Faults, QueueRow

MOST_QUEUES: Final = 200
"""Most queues that one page reads."""

LetterCursor = tuple[int, int]
"""The number of a queue among all of them, or among those with one name, and of its letters to skip."""


class Letter:
    """A dead letter of *queue*, and its task, which is read when it is needed: that takes time."""

    def __init__(self, queue: AnyQueue, letter: DeadLetter) -> None:
        self.queue, self.letter = queue, letter
        self.id, self.reason = letter.id, letter.reason

    @cached_property
    def called(self) -> TaskEntry:
        """The letter as a task."""
        letter = self.letter
        return TaskEntry.of(Entry(letter.id, letter.body, letter.headers, letter.died_at, letter.died_at))

    @property
    def task(self) -> str:
        """The name of the task that it calls; "" if it is none."""
        return self.called.task


class Letters(Listing[Letter, LetterCursor]):
    """The dead letters of the queues called *name*, or of all; oldest first in each queue.

    A page covers at most :data:`MOST_QUEUES` queues. Queues that cannot be read are left out and added to *faults*.
    Raises InvalidNameError for an unknown name.
    """

    noun = "dead letters"

    def __init__(
        self, access: Access, name: str | None, conditions: Conditions, faults: Faults, scan: SearchReport | None = None
    ) -> None:
        super().__init__(conditions, scan)
        self._access, self._name, self._faults = access, name, faults
        # Queues with letters, by their numbers, of those from *start* on; the next ones begin at *end*.
        self._queues: dict[int, AnyQueue] = {}
        self._start, self._end, self._has_more_queues = 0, 0, False
        #: The counts of all queues; None if there are more than those of one page.
        self.rows: Sequence[QueueRow] | None = None

    @property
    def reads(self) -> bool:
        """Whether bodies have to be read to know which letters match."""
        return self.conditions.has("task", "task_part")

    def read(self, cursor: LetterCursor | None, size: int, budget: int | None) -> Chunk[Letter, LetterCursor]:
        """Read letters of one queue."""
        start, offset = cursor or (0, 0)
        if not self._start <= start < self._end:
            self._find_queues(start)
        number = next((number for number in self._queues if number >= start), None)
        if number is None:
            return Chunk((), (self._end, 0) if self._has_more_queues else None, ends=True)
        queue, offset = self._queues[number], offset if number == start else 0
        listed: Sequence[DeadLetter] = ()
        with self._faults.of_queue(queue):
            listed = queue.dead_letters(offset=offset, limit=size, max_bytes=budget)
        is_cut = self.reads and budget is not None
        letters = items_within_budget(listed, lambda letter: letter.body) if is_cut else listed
        spent = sum(letter.size for letter in listed if not isinstance(letter.body, Unread))
        if len(letters) < len(listed):
            spent = max(spent, LOOK_BYTES)
        items = [(Letter(queue, letter), (number, at)) for at, letter in enumerate(letters, offset + 1)]
        return Chunk(items, items[-1][1] if items else (number + 1, 0), spent)

    def match(self, item: Letter) -> bool:
        """Tell whether the letter matches, and count it."""
        self.scan.add(item.task if self.reads else "")
        return self.conditions.match(item)

    def is_unread(self, item: Letter) -> bool:
        """Tell whether the body is needed and was too large."""
        return self.reads and isinstance(item.letter.body, Unread)

    def _find_queues(self, start: int) -> None:
        catalog = self._access.catalog
        if self._name is None:
            listing = catalog.listing(offset=start, limit=MOST_QUEUES)
            found, after = listing.known, listing.next
        else:
            found, after = catalog.known(self._name)[start:], None
        self._queues, self._start = {}, start
        self._end, self._has_more_queues = after or start + max(1, len(found)), after is not None
        rows = self._access.inspector.queues(found)
        for number, (known, row) in enumerate(zip(found, rows, strict=True), start):
            if row.error:
                self._faults.add(row)
            elif row.dead:
                with self._faults.of(known.kind, known.name):
                    self._queues[number] = catalog.open(known)
        self.rows = rows if not start and after is None else None
