"""Workload: what the processes of a run do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from chaos.killing import Dice

Step = Callable[[], bool]
"""One step of a process; False: there is nothing left to do for it."""

PRODUCER: Final = "producer"


@dataclass(frozen=True, slots=True)
class Post:
    """Where a process works: its history, the seed of its dice, and how many of a producer's messages are its own."""

    history: Path
    seed: int
    chance: float
    labels: range
    lane: int

    def arm(self) -> Dice:
        """Let this process die between any two commands, and return the dice."""
        dice = Dice(self.seed, self.chance)
        dice.arm()
        return dice


class Workload(Protocol):
    """What a run needs to know of what its processes do."""

    crew: Sequence[str]
    """The role of each process; the run lasts until every producer has put its messages and all are done."""

    lease: float
    """Seconds after which somebody else gets what a process holds."""

    calm: float
    """Seconds in which somebody must do something once everything is put, until all is done."""

    def begin(self, role: str, post: Post) -> Step:
        """Return what a process of *role* repeats; called in that process."""
        ...

    def look(self) -> Iterable[str]:
        """Yield what is wrong at this moment."""
        ...

    def is_done(self, histories: Sequence[Path]) -> bool:
        """Tell whether nothing waits or is held any more."""
        ...

    def left(self) -> Iterable[str]:
        """Yield the ids that are kept at the end."""
        ...

    def wrong(self) -> Iterable[str]:
        """Yield what is wrong at the end."""
        ...
