"""Phases: what a task did with its time: it was delayed, waited, was prefetched, ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final, Literal

from redis_queue.basics.times import span_text
from redis_queue.monitor.model import Run
from redis_queue.operate.task_life import TaskLife

Doing = Literal["delayed", "waited", "prefetched", "ran"]

MAX_PHASES: Final = 50
"""Ten runs with four phases each, and what it does now."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What a task was *doing* for some *seconds*. It *lasts* if it has not ended."""

    doing: Doing
    begins_at: datetime
    seconds: float
    lasts: bool = False

    @property
    def text(self) -> str:
        """The phase as people read it."""
        return f"{self.doing} {span_text(self.seconds, parts=1)}{' so far' if self.lasts else ''}"


def phases(life: TaskLife) -> list[Phase]:
    """Return the phases of a task in order. Those whose begin or end is unknown are left out.

    Times come from several clocks: a phase that ended before it began is left out, too.
    """
    found = [phase for run in reversed(life.runs) for phase in _of_run(run)]
    return [*found, *_of_now(life)][-MAX_PHASES:]


def _of_run(run: Run) -> Iterator[Phase]:
    sent = run.sent_at if run.due_at is None else run.due_at
    steps: Sequence[tuple[Doing, datetime | None]] = (
        ("delayed", None if run.due_at is None else run.sent_at),
        ("waited", sent),
        ("prefetched", run.fetched_at),
        ("ran", run.started_at),
    )
    yield from _between([*steps, ("ran", run.ended_at if run.started_at is not None else None)])


def _of_now(life: TaskLife) -> Iterator[Phase]:
    if life.state == "running" and life.running is not None:
        yield from _between([("ran", life.running.since), ("ran", life.at)], lasts=True)
    elif life.state == "waiting" and life.waiting is not None:
        yield from _between([("waited", life.waiting[1].since), ("waited", life.at)], lasts=True)
    elif life.state == "delayed" and life.stored is not None:
        yield from _between([("delayed", life.stored[1].put_at), ("delayed", life.at)], lasts=True)


def _between(steps: Iterable[tuple[Doing, datetime | None]], *, lasts: bool = False) -> Iterator[Phase]:
    """Yield the phase from each known step to the next one."""
    known = [(doing, at) for doing, at in steps if at is not None]
    for (doing, begins_at), (_, ends_at) in pairwise(known):
        seconds = (ends_at - begins_at).total_seconds()
        if seconds >= 0:
            yield Phase(doing, begins_at, seconds, lasts)
