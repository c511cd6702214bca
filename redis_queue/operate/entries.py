"""The listing of waiting entries, and entries and messages as subjects of an action."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Final

from redis_queue.basics.times import from_ms
from redis_queue.catalog import AnyQueue
from redis_queue.celery.message.task_entry import Conditions, TaskEntry
from redis_queue.delay.queue import DelayQueue
from redis_queue.model import Entry, Item, State, Unread
from redis_queue.operate.access import Access
from redis_queue.operate.audit import MOST_SUBJECTS, Subject
from redis_queue.operate.listing import LOOK_BYTES, Chunk, Listing, SearchReport, items_within_budget
from redis_queue.operate.queue_row import BROKEN

Waiting = tuple[Entry, TaskEntry]

MOST_LOOKS: Final = 100

ANY: Final[Sequence[State]] = ("ready", "delayed", "in_flight", "dead")
DEAD: Final[Sequence[State]] = ("dead",)


class Entries(Listing[Waiting, str]):
    """The entries that wait in *queue*, by due time."""

    noun = "entries"

    def __init__(
        self, access: Access, queue: DelayQueue, conditions: Conditions, scan: SearchReport | None = None
    ) -> None:
        super().__init__(conditions, scan)
        self._queue = queue
        before, after = conditions.window(access.inspector.now)
        self._window: dict[str, Any] = {"due_before": before, "due_after": after}

    @property
    def reads(self) -> bool:
        """Whether payloads have to be read to know which entries match."""
        return self.conditions.needs_payloads

    @property
    def searches(self) -> bool:
        """Whether entries in the window of due times may not match."""
        return self.conditions.needs_entries

    def read(self, cursor: str | None, size: int, budget: int | None) -> Chunk[Waiting, str]:
        """Read entries, up to the first one that needs a read of its own."""
        most = LOOK_BYTES if budget is None else budget
        listed: Sequence[Entry] = self._queue.list(after=cursor, limit=size, max_bytes=most, **self._window)
        entries = listed
        if budget is None:
            large = (number for number, entry in enumerate(listed) if isinstance(entry.payload, Unread))
            entries = listed[: next(large, len(listed))]
            if listed and not entries:
                entries = self._queue.list(after=cursor, limit=1, **self._window)
        elif self.reads:
            entries = items_within_budget(listed, attrgetter("payload"))
        items = [((entry, TaskEntry.of(entry)), self._queue.cursor(entry)) for entry in entries]
        is_last = not items or len(entries) == len(listed) < size
        spent = LOOK_BYTES if len(entries) < len(listed) else 0
        return Chunk(items, None if is_last else items[-1][1], spent)

    def match(self, item: Waiting) -> bool:
        """Tell whether the entry matches, and count it."""
        self.scan.add(item[1].task)
        return self.conditions.match(item[1])

    def is_unread(self, item: Waiting) -> bool:
        """Tell whether the payload is needed and was too large."""
        return self.reads and isinstance(item[0].payload, Unread)

    def count(self) -> int | None:
        """Return how many entries match; None where they would have to be read."""
        return None if self.conditions.needs_entries else self._queue.count(**self._window)


def subjects(pairs: Iterable[tuple[AnyQueue, str]], states: Sequence[State] = ANY) -> list[Subject]:
    """Return the first :data:`MOST_SUBJECTS` of *pairs* (queue, id) that exist in one of *states*.

    It reads at most :data:`MOST_LOOKS` of them. Unreadable queues are left out.
    """
    found: list[Subject] = []
    for (queue, id_), _ in zip(pairs, range(MOST_LOOKS), strict=False):
        with contextlib.suppress(*BROKEN):
            item = queue.look(id_)
            if item is not None and item.state in states:
                found.append(Subject(id_, queue.name, task_of(item).task, item.at))
        if len(found) == MOST_SUBJECTS:
            break
    return found


def task_of(item: Item) -> TaskEntry:
    """Return *item* as a task."""
    unknown = from_ms(0)
    put_at, at = item.put_at or unknown, item.at or unknown
    return TaskEntry.of(Entry(item.id, item.body, item.headers, put_at, at, item.deliveries))
