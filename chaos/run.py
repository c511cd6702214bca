"""A run: start a crew, strike its servers, wait until all messages are finished, check the histories."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import redis

from chaos.checker import check
from chaos.crew import Crew, Duty
from chaos.workload import Workload
from redis_queue.errors import StoreError
from redis_queue.validation.history import CheckResult, Event, Violation, read

STEP: Final = 0.002
LOOK_EVERY: Final = 0.02
TELL_EVERY: Final = 5.0
MIN_DRAIN: Final = 180.0
"""Seconds that the rest of the messages may always take after the last one was put."""
DRAIN_FACTOR: Final = 2.0
"""In longer runs, how many times as long as putting them."""


@dataclass(frozen=True, slots=True)
class Strikes:
    """A fault of the servers, repeated at an interval while messages are put.

    *strike* returns when the fault is over, with True if it may have undone acknowledged writes.
    """

    strike: Callable[[], bool | None]
    every: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run.

    *undoing* counts the strikes that may have undone acknowledged writes; *recoveries* are the ms from the end of each
    strike to the next claim.
    """

    verdict: CheckResult
    kills: int
    strikes: int
    undoing: int
    recoveries: list[int]
    seconds: float


class Run:
    """One run; its processes are children of this process."""

    def __init__(
        self, duty: Duty, workload: Workload, strikes: Strikes | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self._crew = Crew(workload, duty)
        self._workload = workload
        self._strikes = strikes
        self._tell = tell
        self._wrong: set[str] = set()
        self._look_at = self._tell_at = 0.0
        self._struck: list[int] = []
        self._undoing = 0

    def go(self) -> Outcome:
        """Run to the end. Unfinished messages without progress are a broken promise, too."""
        started = time.monotonic()
        self._strike_at = started + (self._strikes.every if self._strikes else 0)
        try:
            self._crew.start()
            while self._crew.is_putting:
                self._strike()
                self._turn(started)
            put_for = time.monotonic() - started
            drained = self._drain(started, max(MIN_DRAIN, DRAIN_FACTOR * put_for))
        finally:
            self._crew.end()
        events = list(read(*self._crew.histories))
        verdict = check(events, self._workload.left())
        self._wrong.update(self._workload.wrong())
        verdict.violations += [Violation("not as it should stand", what, []) for what in sorted(self._wrong)]
        verdict.violations += [Violation("crashed", what, []) for what in self._crew.crashes]
        if not drained:
            verdict.violations.append(Violation("not drained", "", []))
        seconds = time.monotonic() - started
        return Outcome(verdict, self._crew.kills, len(self._struck), self._undoing, self._recoveries(events), seconds)

    def _drain(self, started: float, seconds: float) -> bool:
        """Return whether all messages were finished: while there is progress, and within *seconds*."""
        self._crew.calm()
        latest = time.monotonic() + seconds
        written, deadline = -1, 0.0
        while not self._is_done():
            if (now_written := self._crew.written) != written:
                written, deadline = now_written, time.monotonic() + self._workload.calm
            # A fault may redeliver the same messages forever: that looks like progress.
            if time.monotonic() > min(deadline, latest):
                return False
            self._turn(started)
        return True

    def _turn(self, started: float) -> None:
        self._crew.tend()
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            self._look()
        if self._tell and now >= self._tell_at:
            self._tell_at = now + TELL_EVERY
            self._tell(f"{now - started:.0f} s, {self._crew.kills} kills, {len(self._struck)} strikes")
        time.sleep(STEP)

    def _strike(self) -> None:
        if self._strikes and time.monotonic() >= self._strike_at:
            self._undoing += bool(self._strikes.strike())
            self._struck.append(round(time.time() * 1000))
            self._strike_at = time.monotonic() + self._strikes.every

    def _look(self) -> None:
        try:
            self._wrong.update(self._workload.look())
        except (StoreError, redis.RedisError):
            return

    def _is_done(self) -> bool:
        try:
            return self._workload.is_done(self._crew.histories)
        except (StoreError, redis.RedisError):
            return False

    def _recoveries(self, events: Iterable[Event]) -> list[int]:
        claims = sorted(event.at for event in events if event.op == "claim")
        firsts = ((struck, bisect_left(claims, struck)) for struck in self._struck)
        return [claims[first] - struck for struck, first in firsts if first < len(claims)]
