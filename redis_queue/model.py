"""Messages, entries, leases and statistics: immutable data without I/O."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

QueuePlace = Literal["ready", "delayed", "dead", "quarantine"]

OnConflict = Literal["replace", "keep", "error"]
"""What a push does if its id exists."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a claimed message or entry, proven by *token*, until *expires_at* unless extended."""

    token: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Unread:
    """Placeholder for a body that was left in Redis; its record has *size* bytes.

    Headers are then empty, and the time of the put or push is the epoch.
    """

    size: int


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a RedisQueue. *deliveries* includes this one; *lease* is None for a message that was not claimed."""

    id: str
    body: Any
    headers: Mapping[str, Any]
    put_at: datetime
    deliveries: int
    lease: Lease | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a DelayQueue. *lease* is None unless it was claimed."""

    id: str
    payload: Any
    headers: Mapping[str, Any]
    put_at: datetime
    due_at: datetime
    deliveries: int = 0
    destination: str | None = None
    lease: Lease | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message or entry without deliveries left, with the last reason; *body* is None if it is unreadable.

    *size* is the number of bytes of its record.
    """

    id: str
    body: Any
    headers: Mapping[str, Any]
    died_at: datetime
    deliveries: int
    reason: str
    size: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """An unreadable record: its raw bytes (empty if left in Redis), their number *size*, and the reason."""

    id: str
    raw: bytes
    reason: str
    found_at: datetime
    size: int


State = Literal["ready", "delayed", "in_flight", "dead"]


@dataclass(frozen=True, slots=True)
class Item:
    """A message or an entry in any state.

    *at* is its due time (delayed), the end of its lease (in flight), the time of its death (dead), or None (ready).
    *problem* says why the record is unreadable; *body* is then None. *reason* is the last reason for giving it back.
    """

    id: str
    state: State
    at: datetime | None
    put_at: datetime | None
    deliveries: int
    reason: str
    body: Any
    headers: Mapping[str, Any]
    destination: str | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A claimed message or entry: the end of its lease and its number of deliveries."""

    id: str
    expires_at: datetime
    deliveries: int


class CancelOutcome(enum.IntEnum):
    """Outcome of cancelling one entry; only CANCELLED is true."""

    #: The entry does not exist or is in flight: nothing was changed.
    NOT_FOUND = 0
    #: The entry was removed and will never run.
    CANCELLED = 1
    #: The entry was removed, but it had been claimed before: its holder may have sent it or done its work.
    MAYBE_SENT = 2

    def __bool__(self) -> bool:
        return self is CancelOutcome.CANCELLED

    def __str__(self) -> str:
        return self.name

    @property
    def taken_out(self) -> bool:
        """Whether the entry existed and was removed."""
        return self is not CancelOutcome.NOT_FOUND


@dataclass(frozen=True, slots=True)
class PutBack:
    """Numbers of a put-back: *returned* may be claimed again, *dead* had no deliveries left."""

    returned: int = 0
    dead: int = 0

    def __add__(self, other: PutBack) -> PutBack:
        return PutBack(self.returned + other.returned, self.dead + other.dead)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Consistent numbers of a RedisQueue: sizes now, all-time totals, and the time of the oldest ready message.

    *redelivered* counts messages that were given back or put back, *put_back* the expired leases.
    """

    ready: int
    delayed: int
    in_flight: int
    dead: int
    quarantined: int
    put: int
    acked: int
    redelivered: int
    paused: bool
    oldest_ready_at: datetime | None
    put_back: int = 0


@dataclass(frozen=True, slots=True)
class DelayStats:
    """Numbers of a DelayQueue: the sum of its shards, each of them consistent."""

    waiting: int
    due: int
    in_flight: int
    dead: int
    quarantined: int
    next_due: datetime | None
