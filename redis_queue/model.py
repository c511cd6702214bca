"""What the queues hand out: frozen records without I/O."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on what was claimed, proven by *token*, until *expires_at* unless extended."""

    token: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Unread:
    """Placeholder for a body that was left in Redis; its record has *size* bytes.

    Then headers are empty, and the time of the put or push is the epoch.
    """

    size: int


@dataclass(frozen=True, slots=True)
class Message:
    """One body of a RedisQueue. *deliveries* counts this one; *lease* is None where it was only looked at."""

    id: str
    body: Any
    headers: Mapping[str, Any]
    put_at: datetime
    deliveries: int
    lease: Lease | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """One delayed payload of a DelayQueue. *lease* is None unless it was claimed."""

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
    """A message or entry that used up its deliveries, with the last reason; *body* is None if unreadable.

    *size*: bytes of its record.
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
    """A message or an entry wherever it is.

    *at*: when it is due (delayed), when its lease ends (in flight), when it died, or None (ready). *problem* says why
    the record cannot be read; then *body* is None. *reason* is the last one it was given back for.
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
    """What is in flight: until when, and how often it was delivered."""

    id: str
    expires_at: datetime
    deliveries: int


class CancelOutcome(enum.IntEnum):
    """Outcome of cancelling one entry; only CANCELLED is true."""

    #: The entry does not exist, or is being worked on: nothing was changed.
    NOT_FOUND = 0
    #: The entry was taken out and will never run.
    CANCELLED = 1
    #: The entry was taken out, but it had been claimed before. Its holder may have sent it, or done its work.
    MAYBE_SENT = 2

    def __bool__(self) -> bool:
        return self is CancelOutcome.CANCELLED

    @property
    def taken_out(self) -> bool:
        """Whether the entry existed and was taken out."""
        return self is not CancelOutcome.NOT_FOUND


@dataclass(frozen=True, slots=True)
class PutBack:
    """What one put-back did: *returned* may be claimed again, *dead* had used up their deliveries."""

    returned: int = 0
    dead: int = 0

    def __add__(self, other: PutBack) -> PutBack:
        return PutBack(self.returned + other.returned, self.dead + other.dead)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One consistent look at a RedisQueue: sizes now, totals since it exists, age of the oldest ready message.

    *redelivered* counts what came back to be claimed again, *put_back* the leases that ran out.
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
    """One consistent look at a DelayQueue (per shard, then added up)."""

    waiting: int
    due: int
    in_flight: int
    dead: int
    quarantined: int
    next_due: datetime | None
