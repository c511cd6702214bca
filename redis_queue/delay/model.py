"""What goes into a DelayQueue and what its moves tell: frozen dataclasses, no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from redis_queue.delay.lateness import NO_LATENESS, Lateness
from redis_queue.errors import InvalidValueError
from redis_queue.model import Entry
from redis_queue.store.records import pairs
from redis_queue.times import Seconds

MAX_FIELDS: Final = 3000
"""Most arguments in one call of a script, which keeps it short: Lua unpacks fewer than 8,000 at once."""

MAX_LISTS: Final = MAX_FIELDS - 10
"""Most lists, and keys that expire, of one :class:`Delivery`."""


MAX_MOVE_LISTS: Final = 2000
"""Most lists that may be given to one move."""


@dataclass(frozen=True, slots=True)
class Push:
    """One entry for :meth:`DelayQueue.push_many`, with the fields of :meth:`DelayQueue.push`."""

    payload: Any
    delay: Seconds | None = None
    due_at: datetime | None = None
    id: str | None = None
    headers: Mapping[str, Any] | None = None
    destination: str | None = None
    #: Text that :meth:`DelayQueue.replace_own` and :meth:`DelayQueue.replace_older` look for in a record; "" for none.
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a claimed entry became: *element* for each of *lists*. Keys in *expiring* end after *ttl_ms* without use."""

    entry: Entry
    element: bytes
    lists: Sequence[str]
    ttl_ms: int = 0
    expiring: Sequence[str] = ()

    def fields(self) -> list[Any]:
        """Return what the script takes. Raises InvalidValueError for more than MAX_LISTS lists and expiring keys."""
        if len(self.lists) + len(self.expiring) > MAX_LISTS:
            raise InvalidValueError(f"{self.entry.id!r} goes to {len(self.lists)} lists: give at most {MAX_LISTS}")
        id_, token = pairs([self.entry])
        return [id_, token, self.element, self.ttl_ms, len(self.lists), *self.lists, len(self.expiring), *self.expiring]


@dataclass(frozen=True, slots=True)
class Foreign:
    """A message of somebody else in Redis: *element* at *place* of the list *key*, counted from the right end (-1 and
    below); or in the field *place* of the hash *key*, which has *score* in the sorted set *index*."""

    element: bytes
    key: str
    place: int | bytes
    index: str = ""
    score: float | None = None

    def fields(self, shift: int) -> tuple[Any, ...]:
        """Return what the script takes; *shift* elements to the right of it are gone."""
        place = self.place + shift if isinstance(self.place, int) else self.place
        return self.key, self.index, place, "" if self.score is None else repr(self.score), self.element


@dataclass(frozen=True, slots=True)
class Claimed:
    """Result of one claim; *more* tells whether more entries may be claimable."""

    entries: list[Entry]
    more: bool


@dataclass(frozen=True, slots=True)
class Moved:
    """What one move did: *moved* entries, *passed* those without a list, and *next_in* seconds until another is due.

    *lateness* is that of the moved ones by the server's clock, *worst* the greatest of it in seconds.
    """

    moved: int = 0
    passed: int = 0
    next_in: float = math.inf
    lateness: Lateness = NO_LATENESS
    worst: float = 0.0

    def __add__(self, other: Moved) -> Moved:
        return Moved(
            self.moved + other.moved,
            self.passed + other.passed,
            min(self.next_in, other.next_in),
            self.lateness + other.lateness,
            max(self.worst, other.worst),
        )

    @classmethod
    def told(cls, moved: int, passed: int, late: Sequence[int]) -> Moved:
        """Return what a script told; *late*: sum and worst in ms and the count of each bucket, empty if none moved."""
        if not late:
            return cls(moved, passed)
        total, worst, *counts = late
        return cls(moved, passed, lateness=Lateness(tuple(counts), total / 1000), worst=worst / 1000)

    def due_next(self, microseconds: int) -> Moved:
        """Return a copy that knows when a shard has something due; below 0: never."""
        return self if microseconds < 0 else replace(self, next_in=min(self.next_in, microseconds / 1e6))


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who waits for due entries: *mine* tells whether the caller does, *left* the seconds until another one may."""

    mine: bool
    leader: str
    left: float
