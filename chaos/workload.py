"""Workload: the work of each process of a run, and how far it is."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.kill_points import Dice
from redis_queue.model import CancelOutcome
from redis_queue.validation.history import Event, History, Kind, read

Step = Callable[[], bool]
"""One step of a process; False if its work is done."""

PRODUCER: Final = "producer"

READ_EVERY: Final = 0.3
"""Seconds between two reads of all histories."""


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


class Progress:
    """Messages that were put but neither executed completely nor cancelled, by the histories."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self._read_at = 0.0

    def is_done(self, histories: Sequence[Path]) -> bool:
        """Return whether all messages are finished."""
        if time.monotonic() >= self._read_at:
            ids: dict[tuple[str, str], set[str]] = defaultdict(set)
            for event in read(*histories):
                ids[event.op, event.kind].add(event.id)
            # An interrupted cancel may have been executed: do not wait for its message.
            cancelled = ids["cancel", "invoke"] - ids["cancel", "refused"]
            self.open = ids["put", "ok"] - ids["ack", "invoke"] - cancelled
            self._read_at = time.monotonic() + READ_EVERY
        return not self.open


class Workload(ABC):
    """Work and checks of a run."""

    crew: Sequence[str]
    """Role of each process; the run ends when all messages are put and finished."""

    lease: float
    """Seconds after which another process gets a held message."""

    calm = 20.0
    """Maximum seconds without progress after the last put."""

    stops_producers = True
    """Whether producers, like the others, are stopped for longer than a lease at times."""

    has_truce = False
    """Whether the run begins without kills, until a producer removes the file of the truce."""

    @abstractmethod
    def begin(self, role: str, post: Post) -> Step:
        """Return the step that a process of *role* repeats; called in that process."""

    def look(self) -> Iterable[str]:
        return ()

    @abstractmethod
    def is_done(self, histories: Sequence[Path]) -> bool:
        """Return whether no message waits or is held."""

    @abstractmethod
    def left(self) -> Iterable[str]:
        """Yield the ids that are still in Redis."""

    def wrong(self) -> Iterable[str]:
        """Yield the faults at the end of the run."""
        return ()
