"""Find the waiting entries that meet conditions."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from redis_queue.celery.message.task_entry import Conditions, TaskEntry
from redis_queue.delay.queue import DelayQueue
from redis_queue.model import Entry, Unread
from redis_queue.operate.access import Access
from redis_queue.operate.pages import LOOK_BYTES, MOST_FULL_LOOKS, MOST_LOOKED_AT, Page, items_within_budget
from redis_queue.operate.search_report import SearchReport
from redis_queue.store.chunks import CHUNK
from redis_queue.store.ids import is_id

__all__ = ["Conditions", "Waiting", "count", "find", "find_ids", "page"]

Waiting = tuple[Entry, TaskEntry]


def find(
    access: Access, queue: DelayQueue, conditions: Conditions, scan: SearchReport | None = None
) -> Iterator[Waiting]:
    """Yield matching entries by due time, read by pages; *scan* counts all of them."""
    scan = scan or SearchReport()
    before, since = conditions.window(access.inspector.now)
    for entry in queue.scan(due_before=before, due_after=since):
        task = TaskEntry.of(entry)
        scan.add(task.task)
        if conditions.match(task):
            yield entry, task


def find_ids(access: Access, queue: DelayQueue, conditions: Conditions, scan: SearchReport | None = None) -> list[str]:
    """Return the ids of matching entries, without invalid ones: entries written by other tools may have them."""
    return [entry.id for entry, _ in find(access, queue, conditions, scan) if is_id(entry.id)]


def page(
    access: Access,
    queue: DelayQueue,
    conditions: Conditions,
    after: str | None,
    limit: int,
    *,
    scan: SearchReport | None = None,
) -> Page[Waiting, str]:
    """Return up to *limit* matching entries after the cursor *after*.

    Searches at most :data:`MOST_LOOKED_AT` entries. The payloads of large ones stay in Redis: they match by id and due
    time only. *scan* counts all entries that were searched.
    """
    scan = scan or SearchReport()
    before, since = conditions.window(access.inspector.now)
    found: list[Waiting] = []
    looked = unread = full = 0
    while len(found) < limit and looked < MOST_LOOKED_AT and full < MOST_FULL_LOOKS:
        size = CHUNK if conditions.needs_entries else min(limit, CHUNK)
        listed = queue.list(after=after, limit=size, due_before=before, due_after=since, max_bytes=LOOK_BYTES)
        entries = items_within_budget(listed, attrgetter("payload")) if conditions.needs_payloads else listed
        full += len(entries) < len(listed)
        for entry in entries:
            looked += 1
            after = queue.cursor(entry)
            task = TaskEntry.of(entry)
            scan.add(task.task)
            unread += conditions.needs_payloads and isinstance(entry.payload, Unread)
            if conditions.match(task):
                found.append((entry, task))
                if len(found) == limit:
                    break
        else:
            if len(entries) == len(listed) < size:
                return Page(found, None, looked, unread, full)
    more = queue.list(after=after, limit=1, due_before=before, due_after=since, max_bytes=0)
    return Page(found, after if more else None, looked, unread, full)


def count(access: Access, queue: DelayQueue, conditions: Conditions) -> int | None:
    """Return how many entries match; None where they would have to be read."""
    if conditions.needs_entries:
        return None
    before, since = conditions.window(access.inspector.now)
    return queue.count(due_before=before, due_after=since)
