"""TravelClock: a clock that the test moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from redis_queue.basics.times import from_ms

MoveTo = Callable[[datetime], object]
"""Move the clock of the process: ``move_to`` of time-machine or freezegun."""

LONGEST_AGE: Final = 60_000
"""Milliseconds that a slow test may take between a send and a look at it."""


class TravelClock:
    """The clock of the process plus the travelled time; it can be stopped."""

    def __init__(self) -> None:
        self.move_to: MoveTo | None = None
        self._ahead = 0
        self._stopped: int | None = None
        self._travelled: list[tuple[int, int]] = []

    def __call__(self) -> int:
        """Return milliseconds since the epoch."""
        return _process_ms() + self._ahead if self._stopped is None else self._stopped

    def stop_at(self, moment: int) -> None:
        """Stop at *moment*, or now if that is later."""
        here = self()
        self._stopped = max(moment, here)
        self._travelled.append((here, self._stopped))
        if self.move_to is not None:
            self.move_to(from_ms(self._stopped))

    def go_on(self) -> None:
        """Continue from the time at which it was stopped."""
        if self._stopped is not None:
            self._ahead = self._stopped - _process_ms()
            self._stopped = None

    def age(self, since: int) -> int:
        """Return the ms since *since* without travelled time, at most a minute."""
        travelled = sum(max(0, to - max(begin, since)) for begin, to in self._travelled)
        return min(max(0, self() - since - travelled), LONGEST_AGE)


def _process_ms() -> int:
    # Not time_ns(): freezegun and time-machine both move this one.
    return int(time.time() * 1000)
