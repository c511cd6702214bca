"""Sample: the runs that a report shows, of those that have ended since the last one."""

from __future__ import annotations

import heapq
import itertools
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Final

from redis_queue.monitor.model import Outcome, Run
from redis_queue.monitor.report import MOST_ENDED

_UNUSUAL: Final = 1e12
"""Seconds by which a run counts more if it did not succeed."""

_Ranked = tuple[float, int, Run]


class Sample:
    """Holds up to :data:`MOST_ENDED` runs: first those that did not succeed, then the slowest ones.

    Safe for threads.
    """

    def __init__(self) -> None:
        self._runs: list[_Ranked] = []
        self._taken: list[_Ranked] = []
        self._numbers = itertools.count()
        self._least = -1.0
        # As that of Activity.
        self._lock = threading.RLock()

    def wants(self, outcome: Outcome, seconds: float | None) -> bool:
        """Tell whether a run belongs to the sample."""
        return outcome != "succeeded" or (seconds or 0.0) > self._least

    def add(self, run: Run, seconds: float | None) -> None:
        """Add a run, in the place of one that matters less."""
        rank = (seconds or 0.0) + (_UNUSUAL if run.outcome != "succeeded" else 0.0)
        with self._lock:
            found = rank, next(self._numbers), run
            if len(self._runs) < MOST_ENDED:
                heapq.heappush(self._runs, found)
            elif rank > self._runs[0][0]:
                heapq.heapreplace(self._runs, found)
            if len(self._runs) == MOST_ENDED:
                self._least = self._runs[0][0]

    def take(self, skew: float) -> list[Run]:
        """Return the runs that are not :meth:`written`, in the order of their ends.

        *skew* is how many seconds the clock of Redis is ahead.
        """
        with self._lock:
            runs, self._runs, self._least = self._runs, [], -1.0
        self._taken = heapq.nlargest(MOST_ENDED, [*self._taken, *runs])
        return [_shifted(run, timedelta(seconds=skew)) for _, _, run in sorted(self._taken, key=_number)]

    def written(self) -> None:
        """Forget what the last :meth:`take` returned."""
        self._taken.clear()


def _number(found: _Ranked) -> int:
    return found[1]


def _shifted(run: Run, skew: timedelta) -> Run:
    started = None if run.started_at is None else run.started_at + skew
    fetched = None if run.fetched_at is None else run.fetched_at + skew
    return replace(run, ended_at=run.ended_at + skew, started_at=started, fetched_at=fetched)
