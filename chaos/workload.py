"""Workload: the work of each process of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from chaos.kill_points import Dice
from redis_queue.model import CancelOutcome
from redis_queue.validation.history import Event, History, Kind

Step = Callable[[], bool]
"""One step of a process; False if its work is done."""

PRODUCER: Final = "producer"


@dataclass(frozen=True, slots=True)
class Post:
    """Parameters of a process: its history, the seed and chance of its dice, a producer's messages and its lane."""

    history: Path
    seed: int
    chance: float
    labels: range
    lane: int

    @property
    def truce(self) -> Path:
        """A file: while it exists, no process of the run is killed or stopped."""
        return truce(self.history.parent)

    def arm(self, share: float = 1.0) -> Dice:
        """Allow this process to be killed between any two commands, with a *share* of the chance; return the dice."""
        dice = Dice(self.seed, share * self.chance, self.truce.exists)
        dice.arm()
        return dice


def truce(folder: Path) -> Path:
    """Return the path of the file that forbids kills in the run with this *folder*."""
    return folder / "truce"


def note_cancel(history: History, id: str, outcome: CancelOutcome) -> None:
    """Record the outcome of a cancel; for a message that may have been sent it stays unknown."""
    if outcome is not CancelOutcome.MAYBE_SENT:
        kind: Kind = "ok" if outcome else "refused"
        history.write(Event("cancel", kind, id, at=round(time.time() * 1000)))


class Workload(Protocol):
    """Work and checks of a run."""

    crew: Sequence[str]
    """Role of each process; the run ends when all messages are put and finished."""

    lease: float
    """Seconds after which another process gets a held message."""

    calm: float
    """Maximum seconds without progress after the last put."""

    stops_producers: bool
    """Whether producers, like the others, are stopped for longer than a lease at times."""

    has_truce: bool
    """Whether the run begins without kills, until a producer removes the file of the truce."""

    def begin(self, role: str, post: Post) -> Step:
        """Return the step that a process of *role* repeats; called in that process."""
        ...

    def look(self) -> Iterable[str]:
        """Yield the current faults."""
        ...

    def is_done(self, histories: Sequence[Path]) -> bool:
        """Return whether no message waits or is held."""
        ...

    def left(self) -> Iterable[str]:
        """Yield the ids that are still in Redis."""
        ...

    def wrong(self) -> Iterable[str]:
        """Yield the faults at the end of the run."""
        ...
