"""History: what processes did with messages, and the check that none of them is lost or doubled."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from redis_queue.model import Entry, Message

Kind = Literal["invoke", "ok", "refused"]

MAX_STEPS: Final = 12
"""Maximum number of steps of a message that a violation shows: the first and the last ones."""


class Event(NamedTuple):
    """One step of one process.

    *kind*: ``invoke`` before a call, ``ok`` or ``refused`` after it; an invoke without either has an unknown outcome.
    *claim* counts the claims of a queue in the order in which Redis made them, *deliveries* those of the message; *at*
    and *due* are times in ms. Messages put in the same *lane* (0: none) come in the order in which they were put.
    """

    op: str
    kind: Kind
    id: str
    claim: int = 0
    at: int = 0
    due: int = 0
    deliveries: int = 0
    lane: int = 0

    @classmethod
    def of_claim(cls, id: str, held: Message | Entry, lease: float) -> Event:
        """Return the claim of *held*, whose lease was *lease* seconds long, as an event of the message *id*."""
        if held.lease is None:
            raise RuntimeError(f"{id} was claimed without a lease")
        at = round(held.lease.expires_at.timestamp() * 1000) - round(lease * 1000)
        return cls("claim", "ok", id, int(held.lease.token.partition("-")[0]), at, deliveries=held.deliveries)


class History:
    """The history of one process, in its own file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *events: Event) -> None:
        """Append *events* in one write."""
        os.write(self._file, "".join(f"{json.dumps(event)}\n" for event in events).encode())

    def close(self) -> None:
        os.close(self._file)


def read(*paths: Path) -> Iterator[Event]:
    """Yield the events of these histories; lines that a kill cut off are ignored."""
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):
                yield Event(*json.loads(line))


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: which one, of which message, and the history of that message."""

    promise: str
    id: str
    history: Sequence[Event]

    def __str__(self) -> str:
        steps = [f"    {event}" for event in self.history]
        if len(steps) > MAX_STEPS:
            half = MAX_STEPS // 2
            steps = [*steps[:half], f"    ... {len(steps) - MAX_STEPS} more ...", *steps[-half:]]
        return "\n".join([f"{self.promise}: {self.id}", *steps])


@dataclass(slots=True)
class CheckResult:
    """Result of a check.

    *sent*: messages whose put was confirmed; *unknown*: whose put was cut off. *executed* counts executions, *repeated*
    those after the first one of a message. *refused*: late acks. *dropped*: messages that a consumer gave up on
    purpose. *returns*: ms from a claim without a result to the next claim.
    """

    sent: int = 0
    unknown: int = 0
    executed: int = 0
    repeated: int = 0
    refused: int = 0
    cancelled: int = 0
    dropped: int = 0
    returns: list[int] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)

    def broken(self, *promises: str) -> int:
        """Return of how many messages one of *promises* was broken."""
        return len({violation.id for violation in self.violations if violation.promise in promises})


def check(events: Iterable[Event], left: Iterable[str]) -> CheckResult:
    """Check the history *events* of a run; *left* are the ids that are still in Redis at its end.

    * No loss: every message that was put is settled, cancelled, or still there.
    * Nothing from nowhere: every claimed message was put, or its put was cut off.
    * Never early: no claim before the message was due.
    * An ack is final, and only the last claim may ack: a fence.
    * A cancelled message is never claimed; a finished one cannot be cancelled.
    * First deliveries of the messages of one lane come in the order in which they were put.
    """
    by_id: dict[str, list[Event]] = defaultdict(list)
    order = _Order()
    for event in events:
        by_id[event.id].append(event)
        order.add(event)
    verdict, still = CheckResult(), set(left)
    for id_, history in by_id.items():
        _count(verdict, history)
        for promise in _broken(history, still=id_ in still):
            verdict.violations.append(Violation(promise, id_, history))
    for first, second in order.broken():
        verdict.violations.append(Violation("out of order", second, [*by_id[first], *by_id[second]]))
    return verdict


class _Order:
    """Order of puts in each lane, and of first deliveries."""

    def __init__(self) -> None:
        self._lanes: dict[int, list[str]] = defaultdict(list)
        self._firsts: dict[str, tuple[int, int]] = {}

    def add(self, event: Event) -> None:
        if event.op == "put" and event.kind == "ok" and event.lane:
            self._lanes[event.lane].append(event.id)
        elif event.op == "claim" and event.deliveries == 1:
            # The messages of one claim stand in one history, in their order.
            self._firsts[event.id] = event.claim, len(self._firsts)

    def broken(self) -> Iterator[tuple[str, str]]:
        """Yield neighbours of a lane whose first deliveries came in the wrong order."""
        for lane in self._lanes.values():
            claimed = [id_ for id_ in lane if id_ in self._firsts]
            yield from ((one, two) for one, two in itertools.pairwise(claimed) if self._firsts[two] < self._firsts[one])


def _count(verdict: CheckResult, history: Sequence[Event]) -> None:
    kinds = Counter((event.op, event.kind) for event in history)
    executed = kinds["execute", "ok"]
    verdict.sent += kinds["put", "ok"]
    verdict.unknown += kinds["put", "invoke"] and not kinds["put", "ok"]
    verdict.executed += executed
    verdict.repeated += max(0, executed - 1)
    verdict.refused += kinds["ack", "refused"]
    verdict.cancelled += kinds["cancel", "ok"]
    verdict.dropped += kinds["drop", "ok"]
    if not kinds["nack", "ok"]:
        claims = sorted(event.at for event in history if event.op == "claim")
        verdict.returns += [later - earlier for earlier, later in itertools.pairwise(claims)]


def _broken(history: Sequence[Event], *, still: bool) -> Iterator[str]:
    done = {(event.op, event.kind) for event in history}
    claims = [event for event in history if event.op == "claim"]
    acked = [event.claim for event in history if event.op == "ack" and event.kind == "ok"]
    # A call that was cut off may have been executed: it counts as settled. A refused one does not.
    invoked, refused = (
        Counter((event.op, event.claim) for event in history if event.op in ("ack", "cancel") and event.kind == kind)
        for kind in ("invoke", "refused")
    )
    settled = bool(acked) or ("cancel", "ok") in done or bool(invoked - refused)
    if ("put", "ok") in done and not settled and not still:
        yield "lost"
    if claims and not any(event.op == "put" for event in history):
        yield "came from nowhere"
    due = max((event.due for event in history if event.op == "put"), default=0)
    if any(event.at < due for event in claims):
        yield "early"
    if any(acked) and any(event.claim > min(acked) for event in claims):
        yield "came again after its ack"
    if any(acked) and len(acked) > 1:
        yield "acked twice"
    cancelled_at = min((event.at for event in history if (event.op, event.kind) == ("cancel", "ok")), default=math.inf)
    if any(event.at > cancelled_at for event in claims):
        yield "cancelled and came"
    if ("cancel", "ok") in done and acked:
        yield "cancelled and done"
