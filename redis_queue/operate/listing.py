"""Listings: what a person may search and page through, with one search for all of them."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar

from redis_queue.basics.options import Conditions, counted, nearest
from redis_queue.catalog import AnyQueue
from redis_queue.model import Quarantined, Unread
from redis_queue.operate.queue_row import Faults
from redis_queue.store.chunks import CHUNK

T = TypeVar("T")
Cursor = TypeVar("Cursor")
Key = TypeVar("Key")

InQueue = tuple[AnyQueue, T]
"""An item, and its queue."""

MAX_NAMES: Final = 1000
"""Maximum number of names that are remembered for suggestions."""

SUGGESTED: Final = 3

MAX_LOOKED_AT: Final = 1000
"""Items that are read for one page, so that a rare name costs no more than a frequent one."""

MAX_LOOKED_AT_TO_ACT: Final = 100_000
"""Items that are read to find those of an action, so that a request ends in time."""

LOOK_BYTES: Final = 2 * 1024 * 1024
"""Maximum bytes of records per read; bodies that do not fit stay in Redis."""

MAX_BYTES: Final = 4 * LOOK_BYTES
"""Bytes of records that are read for one page."""

MAX_BYTES_TO_ACT: Final = 32 * LOOK_BYTES
"""Bytes of records that are read to find the items of an action."""


class SearchReport:
    """Statistics of a search: number of entries, their task names, and the queues that cannot be read."""

    def __init__(self) -> None:
        self.looked = 0
        self.faults = Faults()
        #: What else was not searched.
        self.notes: list[str] = []
        self._names: set[str] = set()

    def add(self, task: str) -> None:
        """Count an entry; *task* is "" if it is not a task."""
        self.looked += 1
        if task and len(self._names) < MAX_NAMES:
            self._names.add(task)

    def no_match(self, noun: Sequence[str], conditions: Conditions) -> tuple[str, str]:
        """Return the text for a search without a match, and suggestions to append; "" for none."""
        task = conditions.task_part or conditions.task
        near = self._near(task) if task else []
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        return f"no match among {counted(self.looked, *noun)}", hint

    def _near(self, task: str) -> list[str]:
        names = sorted(self._names - {task})
        asked = task.lower()
        parts = [name for name in names if asked in name.lower()]
        # People remember the last part of a dotted name.
        known = {form: name for name in names for form in (name.lower(), name.lower().rpartition(".")[2])}
        close = [known[form] for form in nearest(asked, known, most=SUGGESTED)]
        return list(dict.fromkeys([*parts, *close]))[:SUGGESTED]


@dataclass(frozen=True, slots=True)
class Chunk(Generic[T, Cursor]):
    """The items of one read, each with the cursor behind it; *next* is None if there are no more.

    *spent* counts the bytes of bodies, where they are known; it is at least :data:`LOOK_BYTES` if these were used up.
    *ends*: a page ends here, whatever it has found.
    """

    items: Sequence[tuple[T, Cursor]]
    next: Cursor | None
    spent: int = 0
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Page(Generic[T, Cursor]):
    """Items, and where to continue: *next* is None after the last one.

    *looked* counts items that were looked at, *unread* those of them that are too large to be searched, and *spent* the
    bytes of bodies that were read, as in :class:`Chunk`.
    """

    items: Sequence[T]
    next: Cursor | None
    looked: int
    unread: int = 0
    spent: int = 0


@dataclass(frozen=True, slots=True)
class Selection(Generic[T]):
    """The items for an action, what was searched for them, and whether there may be *more* that match."""

    items: Sequence[T]
    more: bool = False
    report: SearchReport = field(default_factory=SearchReport)


class Listing(ABC, Generic[T, Cursor]):
    """Items that meet *conditions*, in an order that lasts; *report* counts those that were looked at.

    *reads*: bodies have to be read to know which match.
    """

    noun: ClassVar[Sequence[str]]
    """The word for one, and for several unless it only has an s."""

    def __init__(self, conditions: Conditions) -> None:
        self.conditions = conditions
        self.report = SearchReport()

    @property
    def reads(self) -> bool:
        """Whether bodies have to be read to know which items match."""
        return self.conditions.needs_payloads

    @property
    def searches(self) -> bool:
        """Whether items that are read may not match."""
        return bool(self.conditions)

    @abstractmethod
    def read(self, cursor: Cursor | None, size: int, budget: int | None) -> Chunk[T, Cursor]:
        """Read up to *size* items behind *cursor*, or the first ones, and *budget* bytes of bodies; None for all."""

    def match(self, item: T) -> bool:
        """Return whether *item* matches, and count it."""
        found: Any = item
        self.report.add(found.task)
        return self.conditions.match(found)

    def is_unread(self, item: T) -> bool:  # noqa: ARG002
        """Return whether the body of *item* is needed and was too large."""
        return False

    def nothing(self, otherwise: str) -> tuple[str, str]:
        """Return what to tell if no item was found, and a hint: how many were searched, or *otherwise*."""
        return self.report.no_match(self.noun, self.conditions) if self.conditions else (otherwise, "")

    def opened(self) -> AbstractContextManager[Any]:
        """Return a context in which items can be read."""
        return nullcontext()

    def page(self, start: Cursor | None, limit: int, *, most: int | None = None) -> Page[T, Cursor]:
        """Return up to *limit* items that match behind the cursor *start*.

        It looks at about *most* items (default: :data:`MAX_LOOKED_AT`) and reads about :data:`MAX_BYTES`. Large
        bodies stay in Redis: such items match by what else is known of them. Raises InvalidValueError for a cursor that
        is none, and StoreError.
        """
        with self.opened():
            return self._page(start, limit, most)

    def all(self) -> Iterator[T]:
        """Yield all items that match, read piece by piece, with bodies of any size."""
        cursor: Cursor | None = None
        with self.opened():
            while True:
                chunk = self.read(cursor, CHUNK, None)
                yield from (item for item, _ in chunk.items if self.match(item))
                cursor = chunk.next
                if cursor is None:
                    return

    def first(self, limit: int) -> tuple[list[T], bool]:
        """Return the first *limit* of all items that match, and whether there are more."""
        return first(self.all(), limit)

    def gather(self, most: int | None, key: Callable[[T], Key | None]) -> Selection[Key]:
        """Return the *key* of the first *most* items that match, or of all.

        Items themselves, which may have large bodies, are not kept; those with the key None are left out.
        """
        if most is None:
            rows = [row for item in self.all() if (row := key(item)) is not None]
            return Selection(rows, report=self.report)
        found: list[Key] = []
        cursor, looked, unread, spent = None, 0, 0, 0
        with self.opened():
            while len(found) < most and looked < MAX_LOOKED_AT_TO_ACT and spent < MAX_BYTES_TO_ACT:
                page = self._page(cursor, most - len(found))
                found += [row for item in page.items if (row := key(item)) is not None]
                cursor, looked = page.next, looked + page.looked
                unread, spent = unread + page.unread, spent + page.spent
                if cursor is None:
                    return Selection(found, unread > 0, self.report)
        return Selection(found, True, self.report)

    def _page(self, start: Cursor | None, limit: int, most: int | None = None) -> Page[T, Cursor]:
        found: list[T] = []
        cursor, looked, unread, spent = start, 0, 0, 0
        most = most or MAX_LOOKED_AT
        while len(found) < limit and looked < most and spent < MAX_BYTES:
            size = CHUNK if self.searches else min(limit - len(found), CHUNK)
            chunk = self.read(cursor, size, LOOK_BYTES if self.reads else max(0, LOOK_BYTES - spent))
            spent += chunk.spent
            for item, behind in chunk.items:
                looked, cursor = looked + 1, behind
                unread += self.is_unread(item)
                if self.match(item):
                    found.append(item)
                    if len(found) == limit:
                        break
            else:
                cursor = chunk.next
                if cursor is None or chunk.ends:
                    return Page(found, cursor, looked, unread, spent)
        following = cursor if self._has_more(cursor) else None
        return Page(found, following, looked, unread, spent)

    def _has_more(self, cursor: Cursor | None) -> bool:
        while cursor is not None:
            chunk = self.read(cursor, 1, 0)
            if chunk.items or (chunk.ends and chunk.next is not None):
                return True
            cursor = chunk.next
        return False


def items_within_budget(items: Sequence[T], body: Callable[[T], object]) -> Sequence[T]:
    """Return *items* up to the first one whose body did not fit into :data:`LOOK_BYTES` beside those before it."""
    for position, item in enumerate(items):
        left = body(item)
        if position and isinstance(left, Unread) and left.size <= LOOK_BYTES:
            return items[:position]
    return items


def quarantined(queues: Sequence[AnyQueue], faults: Faults) -> Iterator[InQueue[Quarantined]]:
    """Yield the records in quarantine, queue by queue; errors of a queue are recorded in *faults*."""
    for queue in queues:
        for offset in itertools.count(0, CHUNK):
            page: Sequence[Quarantined] = ()
            with faults.of_queue(queue):
                page = queue.quarantined(offset=offset, limit=CHUNK)
            yield from ((queue, item) for item in page)
            if len(page) < CHUNK:
                break


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
