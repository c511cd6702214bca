"""Checker: what must hold of any history, whatever was killed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from redis_queue.chaos.history import Event


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: which, of which message, and what happened to that message."""

    promise: str
    id: str
    history: Sequence[Event]

    def __str__(self) -> str:
        steps = "\n".join(f"    {event}" for event in self.history)
        return f"{self.promise}: {self.id}\n{steps}"


@dataclass(slots=True)
class Verdict:
    """What a checker found."""

    sent: int = 0
    executed: int = 0
    doubled: int = 0
    refused: int = 0
    cancelled: int = 0
    unknown: int = 0
    violations: list[Violation] = field(default_factory=list)


def check(events: Iterable[Event], left: Iterable[str]) -> Verdict:
    """Check the history *events* of a run; *left* are the ids that still are in Redis at its end.

    * No loss: what was put is settled, cancelled, or still there.
    * Nothing from nowhere: what came was put, or may have been.
    * Never early: nothing came before it was due.
    * An ack is final, and only the last claim may ack: a fence.
    * What was cancelled never comes.
    """
    by_id: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_id[event.id].append(event)
    verdict, still = Verdict(), set(left)
    for id_, history in by_id.items():
        _count(verdict, history)
        for promise in _broken(history, still=id_ in still):
            verdict.violations.append(Violation(promise, id_, history))
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


def _broken(history: Sequence[Event], *, still: bool) -> Iterable[str]:
    done = {(event.op, event.kind) for event in history}
    claims = [event for event in history if event.op == "claim"]
    acked = [event.claim for event in history if event.op == "ack" and event.kind == "ok"]
    # A call that was cut off may have been carried out: its ack, too, settles.
    settled = any(event.op in ("ack", "cancel") and event.kind != "refused" for event in history)
    if ("put", "ok") in done and not settled and not still:
        yield "lost"
    if claims and not any(event.op == "put" for event in history):
        yield "came from nowhere"
    due = max((event.due for event in history if event.op == "put"), default=0)
    if any(event.at < due for event in claims):
        yield "early"
    if acked and max(event.claim for event in claims) > min(acked):
        yield "came again after its ack"
    if len(acked) > 1:
        yield "acked twice"
    if ("cancel", "ok") in done and claims:
        yield "cancelled and came"
