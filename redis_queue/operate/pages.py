"""Pages of long lists."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from redis_queue.catalog import AnyQueue
from redis_queue.model import Quarantined, Unread
from redis_queue.operate.faults import Faults
from redis_queue.store.chunks import CHUNK

T = TypeVar("T")
Other = TypeVar("Other")
Cursor = TypeVar("Cursor")

InQueue = tuple[AnyQueue, T]
"""An item, and its queue."""

MOST_LOOKED_AT: Final = 1000
"""Items that are read for one page, so that a rare name costs no more than a frequent one."""

MOST_LOOKED_AT_TO_ACT: Final = 100_000
"""Items that are read to find those of an action, so that a request ends in time."""

LOOK_BYTES: Final = 2 * 1024 * 1024
"""Most bytes of records per read; bodies that do not fit stay in Redis."""

MOST_FULL_LOOKS: Final = 4
"""Most full reads (LOOK_BYTES each) for a page."""

MOST_FULL_LOOKS_TO_ACT: Final = 32
"""Most full reads to find the items of an action."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T, Cursor]):
    """Items, and where to continue: *next* is None after the last one.

    *looked* counts items that were looked at, *unread* those of them that are too large to be searched, and *full* the
    reads that used up :data:`LOOK_BYTES`.
    """

    items: Sequence[T]
    next: Cursor | None
    looked: int
    unread: int = 0
    full: int = 0

    def of(self, items: Sequence[Other]) -> Page[Other, Cursor]:
        """Return this page with other *items*."""
        return Page(items, self.next, self.looked, self.unread, self.full)


def items_within_budget(items: Sequence[T], body: Callable[[T], object]) -> Sequence[T]:
    """Return *items* up to the first one whose body did not fit into :data:`LOOK_BYTES` beside those before it."""
    for position, item in enumerate(items):
        left = body(item)
        if position and isinstance(left, Unread) and left.size <= LOOK_BYTES:
            return items[:position]
    return items


def gather(
    read: Callable[[Cursor | None, int], Page[T, Cursor]], *, most: int, most_looked_at: int
) -> tuple[list[T], bool]:
    """Return the first *most* items of the pages ``read(cursor, limit)``, and whether there may be more.

    It begins at the cursor None, and ends after *most_looked_at* items or too many large ones.
    """
    found: list[T] = []
    cursor, looked, unread, full = None, 0, 0, 0
    while len(found) < most and looked < most_looked_at and full < MOST_FULL_LOOKS_TO_ACT:
        page = read(cursor, most - len(found))
        found += page.items
        cursor, looked = page.next, looked + page.looked
        unread, full = unread + page.unread, full + page.full
        if cursor is None:
            return found, unread > 0
    return found, True


def through(
    queues: Sequence[AnyQueue], read: Callable[[AnyQueue, int, int], Sequence[T]], faults: Faults
) -> Iterator[InQueue[T]]:
    """Yield what ``read(queue, offset, limit)`` returns, page by page, queue by queue.

    Errors of a queue are recorded in *faults*.
    """
    for queue in queues:
        for offset in itertools.count(0, CHUNK):
            page: Sequence[T] = ()
            with faults.of_queue(queue):
                page = read(queue, offset, CHUNK)
            yield from ((queue, item) for item in page)
            if len(page) < CHUNK:
                break


def quarantined(queues: Sequence[AnyQueue], faults: Faults) -> Iterator[InQueue[Quarantined]]:
    """Yield the records in quarantine, queue by queue."""
    return through(queues, lambda queue, offset, limit: queue.quarantined(offset=offset, limit=limit), faults)


def sized(queues: Sequence[AnyQueue], size: Callable[[AnyQueue], int], faults: Faults) -> list[tuple[AnyQueue, int]]:
    """Return each queue with its *size*; errors of a queue are recorded in *faults*."""
    found: list[tuple[AnyQueue, int]] = []
    for queue in queues:
        with faults.of_queue(queue):
            found.append((queue, size(queue)))
    return found


def first(found: Iterator[T], limit: int) -> tuple[list[T], bool]:
    """Return the first *limit* items, and whether there are more."""
    items = list(itertools.islice(found, limit))
    return items, len(items) == limit and next(found, None) is not None
