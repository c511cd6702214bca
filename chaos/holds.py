"""Holders of a lock over time: record them in a history, and find broken promises there."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from redis_queue.errors import LeaseLostError
from redis_queue.lock.lock import HeldLock
from redis_queue.validation.history import Event, History

LOCK: Final = "lock:"
"""Prefix of the ids of locks."""

LEASE: Final = 0.2
"""Length of a lock's lease in seconds."""


def is_hold(event: Event) -> bool:
    """Return whether *event* is about a lock."""
    return event.id.startswith(LOCK)


@dataclass(slots=True)
class Hold:
    """A lock was held for certain from *begins* to *ends*, in ms; it was requested at *asked* or later."""

    fence: int
    asked: int
    begins: int
    ends: int


def broken_holds(events: Iterable[Event]) -> Iterator[tuple[str, str, list[Event]]]:
    """Yield each broken promise with its lock and the events of the two holders.

    * One at a time: two certain holds do not overlap. A hold is certain from the answer until the end of its lease,
      counted from before the request, or until its last confirmation, and never longer than until the release.
    * A holder who requested the lock after another one got it has a greater fence.
    """
    locks: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        locks[event.id].append(event)
    for id_, history in locks.items():
        holds = sorted(_holds(history), key=lambda hold: hold.begins)
        for promise, one, two in [*_together(holds), *_not_greater(holds)]:
            yield promise, id_, [event for event in history if event.claim in (one.fence, two.fence)]


def _holds(history: Iterable[Event]) -> list[Hold]:
    found: list[Hold] = []
    last: dict[int, Hold] = {}
    for event in history:
        if event.op == "hold":
            last[event.claim] = Hold(event.claim, event.due, event.at, event.due + round(LEASE * 1000))
            found.append(last[event.claim])
        elif event.op == "keep" and event.claim in last:
            last[event.claim].ends = max(last[event.claim].ends, event.at)
        elif event.op == "free" and event.claim in last:
            last[event.claim].ends = min(last[event.claim].ends, event.at)
    return found


def _together(holds: list[Hold]) -> Iterator[tuple[str, Hold, Hold]]:
    latest = Hold(0, 0, 0, 0)
    for hold in holds:
        if hold.begins < min(hold.ends, latest.ends):
            yield "two held one lock", latest, hold
        if hold.ends > latest.ends:
            latest = hold


def _not_greater(holds: list[Hold]) -> Iterator[tuple[str, Hold, Hold]]:
    greatest, got = Hold(0, 0, 0, 0), 0
    for hold in sorted(holds, key=lambda one: one.asked):
        while got < len(holds) and holds[got].begins < hold.asked:
            greatest = max(greatest, holds[got], key=lambda one: one.fence)
            got += 1
        if hold.fence <= greatest.fence:
            yield "a fence that was not greater", greatest, hold


@contextlib.contextmanager
def holding(history: History, held: HeldLock, *, asked_at: int) -> Iterator[None]:
    """Record the time for which a lock is held; the caller releases it afterwards.

    *asked_at*: time before the request in ms by the history's clock.
    """
    id_ = LOCK + held.lock.name
    history.write(Event("hold", "ok", id_, held.fence, at=now_ms() + 1, due=asked_at))
    try:
        yield
        at = now_ms()
        with contextlib.suppress(LeaseLostError):
            held.check()
            history.write(Event("keep", "ok", id_, held.fence, at=at))
    finally:
        history.write(Event("free", "invoke", id_, held.fence, at=now_ms()))


def now_ms() -> int:
    """Return the time, rounded down."""
    return int(time.time() * 1000)
