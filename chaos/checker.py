"""Checker: what must hold of any history, whatever was killed."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from chaos.history import Event
from chaos.holds import broken_holds, is_hold

LONGEST: Final = 12
"""Steps of a message's history that a violation shows: the first and the last ones."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: which, of which message, and what happened to that message."""

    promise: str
    id: str
    history: Sequence[Event]

    def __str__(self) -> str:
        steps = [f"    {event}" for event in self.history]
        if len(steps) > LONGEST:
            half = LONGEST // 2
            steps = [*steps[:half], f"    ... {len(steps) - LONGEST} more ...", *steps[-half:]]
        return "\n".join([f"{self.promise}: {self.id}", *steps])


@dataclass(slots=True)
class Verdict:
    """What a checker found; *returns* are the ms from a claim that came to nothing to the next one."""

    sent: int = 0
    executed: int = 0
    doubled: int = 0
    refused: int = 0
    cancelled: int = 0
    unknown: int = 0
    returns: list[int] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)

    def count(self, promise: str) -> int:
        """Return how often *promise* was broken."""
        return sum(violation.promise == promise for violation in self.violations)


def check(events: Iterable[Event], left: Iterable[str]) -> Verdict:
    """Check the history *events* of a run; *left* are the ids that still are in Redis at its end.

    * No loss: what was put is settled, cancelled, or still there.
    * Nothing from nowhere: what came was put, or may have been.
    * Never early: nothing came before it was due.
    * An ack is final, and only the last claim may ack: a fence.
    * What was cancelled never comes; what is done cannot be cancelled.
    * First deliveries of what one producer put come in the order in which it was put.
    * Nobody takes a lock while another one holds it, and each holder's fence is greater than those before.
    """
    by_id: dict[str, list[Event]] = defaultdict(list)
    lanes: dict[int, list[str]] = defaultdict(list)
    holds: list[Event] = []
    for event in events:
        if is_hold(event):
            holds.append(event)
            continue
        by_id[event.id].append(event)
        if event.lane and event.kind == "ok":
            lanes[event.lane].append(event.id)
    verdict, still = Verdict(), set(left)
    for id_, history in by_id.items():
        _count(verdict, history)
        for promise in _broken(history, still=id_ in still):
            verdict.violations.append(Violation(promise, id_, history))
    for lane in lanes.values():
        for first, second in _overtaken(lane, by_id):
            verdict.violations.append(Violation("out of order", second, [*by_id[first], *by_id[second]]))
    verdict.violations += [Violation(*broken) for broken in broken_holds(holds)]
    return verdict


def _count(verdict: Verdict, history: Sequence[Event]) -> None:
    kinds = Counter((event.op, event.kind) for event in history)
    executed = kinds["execute", "ok"]
    verdict.sent += kinds["put", "ok"]
    verdict.unknown += kinds["put", "invoke"] and not kinds["put", "ok"]
    verdict.executed += executed
    verdict.doubled += max(0, executed - 1)
    verdict.refused += kinds["ack", "refused"]
    verdict.cancelled += kinds["cancel", "ok"]
    if not kinds["nack", "ok"]:
        claims = sorted(event.at for event in history if event.op == "claim")
        verdict.returns += [later - earlier for earlier, later in itertools.pairwise(claims)]


def _broken(history: Sequence[Event], *, still: bool) -> Iterator[str]:
    done = {(event.op, event.kind) for event in history}
    claims = [event for event in history if event.op == "claim"]
    acked = [event.claim for event in history if event.op == "ack" and event.kind == "ok"]
    # A call that was cut off may have been carried out: it settles, too. One that was refused does not.
    asked, refused = (
        Counter((event.op, event.claim) for event in history if event.op in ("ack", "cancel") and event.kind == kind)
        for kind in ("invoke", "refused")
    )
    settled = bool(acked) or ("cancel", "ok") in done or bool(asked - refused)
    if ("put", "ok") in done and not settled and not still:
        yield "lost"
    if claims and not any(event.op == "put" for event in history):
        yield "came from nowhere"
    due = max((event.due for event in history if event.op == "put"), default=0)
    if any(event.at < due for event in claims):
        yield "early"
    if any(acked) and max(event.claim for event in claims) > min(acked):
        yield "came again after its ack"
    if any(acked) and len(acked) > 1:
        yield "acked twice"
    cancelled_at = min((event.at for event in history if (event.op, event.kind) == ("cancel", "ok")), default=math.inf)
    if any(event.at > cancelled_at for event in claims):
        yield "cancelled and came"
    if ("cancel", "ok") in done and acked:
        yield "cancelled and done"


def _overtaken(lane: Sequence[str], by_id: dict[str, list[Event]]) -> Iterator[tuple[str, str]]:
    """Yield neighbours of *lane* whose first deliveries came in the wrong order."""
    firsts = [
        (event.claim, id_) for id_ in lane for event in by_id[id_] if event.op == "claim" and event.deliveries == 1
    ]
    yield from ((first, second) for (one, first), (two, second) in itertools.pairwise(firsts) if two < one)
