"""Arguments and results of a DelayQueue: frozen dataclasses without I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from redis_queue.basics.histogram import NO_TIMES, Histogram
from redis_queue.basics.times import Seconds, from_ms
from redis_queue.errors import InvalidValueError
from redis_queue.model import DelayStats, Entry, OnConflict
from redis_queue.store.records import id_tokens

Conflict = OnConflict | Literal["own"] | int
"""What a script does if an id exists: "own" replaces a record with the same mark, a number one that is older in ms."""

MAX_FIELDS: Final = 3000
"""Maximum number of arguments in one call of a script, which keeps it short: Lua unpacks fewer than 8,000 at once."""

MAX_LISTS: Final = MAX_FIELDS - 10
"""Maximum number of lists and expiring keys of one :class:`Delivery`."""

MAX_MOVE_LISTS: Final = 2000
"""Maximum number of lists of one move."""


@dataclass(frozen=True, slots=True)
class Push:
    """One entry for :meth:`DelayQueue.push_many`, with the fields of :meth:`DelayQueue.push`."""

    payload: Any
    delay: Seconds | None = None
    due_at: datetime | None = None
    id: str | None = None
    headers: Mapping[str, Any] | None = None
    destination: str | None = None
    #: Text by which :class:`redis_queue.delay.entries.MarkedEntries` tells calls with one id apart; "" for none.
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A claimed entry to send: *element* goes into each of *lists*; keys in *expiring* end after *ttl_ms* unused."""

    entry: Entry
    element: bytes
    lists: Sequence[str]
    ttl_ms: int = 0
    expiring: Sequence[str] = ()

    def fields(self) -> list[Any]:
        """Return the arguments of the script. Raises InvalidValueError for too many lists and expiring keys."""
        if len(self.lists) + len(self.expiring) > MAX_LISTS:
            raise InvalidValueError(f"{self.entry.id!r} goes to {len(self.lists)} lists: must be at most {MAX_LISTS}")
        id_, token = id_tokens([self.entry])
        return [id_, token, self.element, self.ttl_ms, len(self.lists), *self.lists, len(self.expiring), *self.expiring]


@dataclass(frozen=True, slots=True)
class ForeignMessage:
    """A message in Redis that another program wrote.

    *element* stands at *place* of the list *key*, counted from the right end (-1 and below); or in the field *place* of
    the hash *key*, which has *score* in the sorted set *index*.
    """

    element: bytes
    key: str
    place: int | bytes
    index: str = ""
    score: float | None = None

    def fields(self, shift: int) -> tuple[Any, ...]:
        """Return the arguments of the script, after *shift* elements to the right of it were removed."""
        place = self.place + shift if isinstance(self.place, int) else self.place
        return self.key, self.index, place, "" if self.score is None else repr(self.score), self.element


@dataclass(frozen=True, slots=True)
class Claim:
    """Result of one claim; *more* tells whether more entries may be claimable."""

    entries: list[Entry]
    more: bool


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Result of one run: the broker took *sent* entries; *failed* entries will be retried or are dead letters.

    *lateness*: how late the sent entries were. *passed*: entries that a move left, as it may not write to their lists.
    *next_in*: seconds until the next entry is due, inf if unknown. *more*: the run stopped at a limit, and more entries
    may be due.
    """

    sent: int = 0
    failed: int = 0
    lateness: Histogram = field(default=NO_TIMES, compare=False)
    passed: int = field(default=0, compare=False)
    next_in: float = field(default=math.inf, compare=False)
    more: bool = field(default=False, compare=False)

    def __add__(self, other: Dispatched) -> Dispatched:
        return Dispatched(
            sent=self.sent + other.sent,
            failed=self.failed + other.failed,
            lateness=self.lateness + other.lateness,
            passed=self.passed + other.passed,
            next_in=min(self.next_in, other.next_in),
            more=self.more or other.more,
        )


@dataclass(frozen=True, slots=True)
class Leadership:
    """The dispatcher that waits for due entries.

    *mine*: it is the caller. *left*: seconds until another one may lead.
    """

    mine: bool
    leader: str
    left: float


def sum_stats(rows: Sequence[Sequence[Any]]) -> DelayStats:
    """Add up the replies of the script ``delay/stats``, one for each shard."""
    *counts, firsts = zip(*rows, strict=True)
    waiting, due, in_flight, dead, quarantined = (sum(column) for column in counts)
    first = min((at for at in firsts if at >= 0), default=None)
    return DelayStats(waiting, due, in_flight, dead, quarantined, None if first is None else from_ms(first))
