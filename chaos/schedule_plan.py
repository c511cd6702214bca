"""Schedules of the row of periodic tasks: the number of a schedule tells its interval and its policies."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from redis_queue.schedules.definition import Missed, Overlap

SCHEDULES: Final = 200

EVERY: Final = (200, 3000)
"""Shortest and longest interval in ms."""

STATIC: Final = 5
"""Schedules in the app's ``beat_schedule``: each beat declares them when it starts."""

MISSED: Final[tuple[Missed, ...]] = ("latest", "all", "skip")

OVERLAPS: Final[tuple[Overlap, ...]] = ("skip", "queue")

OVERLAPPING: Final = 0.1
"""Share of the schedules for each policy of OVERLAPS."""

JITTERED: Final = 0.2
MAX_JITTER: Final = 100
"""Share of the schedules with a jitter, and its length in ms."""


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """What the name of a schedule tells: its interval and jitter in ms, and its policies."""

    every: int
    jitter: int
    missed: Missed
    overlap: Overlap

    @classmethod
    def of(cls, name: str) -> SchedulePlan:
        """Read *name*: a letter and a number."""
        dice = random.Random(name)
        every, share = dice.randrange(*EVERY, 10), dice.random()
        jitter = MAX_JITTER if dice.random() < JITTERED else 0
        overlap = OVERLAPS[int(share / OVERLAPPING)] if share < OVERLAPPING * len(OVERLAPS) else "allow"
        return cls(every, jitter, dice.choice(MISSED), overlap)

    @property
    def options(self) -> dict[str, Any]:
        """The policies, as options of a call."""
        return {"missed": self.missed, "overlap": self.overlap, "jitter": self.jitter / 1000}


def name_of(number: int) -> str:
    """Return the name of the schedule that a producer puts as its *number*-th."""
    return f"s{number % SCHEDULES}"


STATIC_NAMES: Final = tuple(f"t{number}" for number in range(STATIC))
