"""Which waiting entries are meant: conditions that must all hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from operator import attrgetter

from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.delay.queue import DelayQueue
from redis_queue.model import Entry, Unread
from redis_queue.operate.access import Access
from redis_queue.operate.pages import LOOK_BYTES, MOST_FULL_LOOKS, MOST_LOOKED_AT, Page, items_within_budget
from redis_queue.operate.relative_time import When, at
from redis_queue.operate.scan import Scan
from redis_queue.store.chunks import CHUNK
from redis_queue.store.ids import is_id

Waiting = tuple[Entry, TaskEntry]


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions for entries; None: any. *task_part* is a part of the task's name, *task* the whole name."""

    task: str | None = None
    task_part: str | None = None
    queue: str | None = None
    id_prefix: str | None = None
    due_before: When | None = None
    due_after: When | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, item.name) is not None for item in fields(self))

    def entries(self, access: Access, queue: DelayQueue, scan: Scan | None = None) -> Iterator[Waiting]:
        """Yield matching entries by due time, read by pages; *scan* counts all of them."""
        scan = scan or Scan()
        before, since = self._window(access)
        for entry in queue.scan(due_before=before, due_after=since):
            task = TaskEntry.of(entry)
            scan.add(task.task)
            if self.match(task):
                yield entry, task

    def page(
        self, access: Access, queue: DelayQueue, after: str | None, limit: int, scan: Scan | None = None
    ) -> Page[Waiting, str]:
        """Return up to *limit* matching entries after the cursor *after*.

        It looks at no more than :data:`MOST_LOOKED_AT`. The payloads of large ones stay in Redis: they match by id and
        due time only. *scan* counts all entries that were looked at.
        """
        scan = scan or Scan()
        before, since = self._window(access)
        found: list[Waiting] = []
        looked = unread = full = 0
        while len(found) < limit and looked < MOST_LOOKED_AT and full < MOST_FULL_LOOKS:
            size = CHUNK if self.names else min(limit, CHUNK)
            listed = queue.list(after=after, limit=size, due_before=before, due_after=since, max_bytes=LOOK_BYTES)
            entries = items_within_budget(listed, attrgetter("payload")) if self.reads else listed
            full += len(entries) < len(listed)
            for entry in entries:
                looked += 1
                after = queue.cursor(entry)
                task = TaskEntry.of(entry)
                scan.add(task.task)
                unread += self.reads and isinstance(entry.payload, Unread)
                if self.match(task):
                    found.append((entry, task))
                    if len(found) == limit:
                        break
            else:
                if len(entries) == len(listed) < size:
                    return Page(found, None, looked, unread, full)
        more = queue.list(after=after, limit=1, due_before=before, due_after=since, max_bytes=0)
        return Page(found, after if more else None, looked, unread, full)

    @property
    def reads(self) -> bool:
        """Whether payloads have to be read to know which entries match."""
        return (self.task, self.task_part, self.queue) != (None, None, None)

    @property
    def names(self) -> bool:
        """Whether entries have to be read to know which match."""
        return any(name is not None for name in (self.task, self.task_part, self.queue, self.id_prefix))

    def count(self, access: Access, queue: DelayQueue) -> int | None:
        """Return how many match, or None where they would have to be read."""
        if self.names:
            return None
        before, since = self._window(access)
        return queue.count(due_before=before, due_after=since)

    def ids(self, access: Access, queue: DelayQueue, scan: Scan | None = None) -> list[str]:
        """Return the ids that match; one that was written by hand may be one that no call takes."""
        return [entry.id for entry, _ in self.entries(access, queue, scan) if is_id(entry.id)]

    def _window(self, access: Access) -> tuple[datetime | None, datetime | None]:
        """Return before and after when they are due."""
        return at(self.due_before, access.inspector.now), at(self.due_after, access.inspector.now)

    def match(self, task: TaskEntry) -> bool:
        """Tell whether *task* has the names that are asked for; its due time is not looked at."""
        return (
            (self.task is None or task.task == self.task)
            and (self.task_part is None or self.task_part in task.task)
            and (self.queue is None or task.queue == self.queue)
            and (self.id_prefix is None or task.id.startswith(self.id_prefix))
        )
