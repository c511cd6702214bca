"""The checker: what is known of each task, in arrays, read while the run goes on."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.kills.campaign.app import RUN
from benchmarks.kills.campaign.producer import CALL, SENT, UNKNOWN

EXACT: Final = 0.002
"""Seconds by which due times are rounded."""

UNSYNCED: Final = 2.0
"""Seconds of acknowledged writes that a killed Redis may lose with ``appendfsync everysec``."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happened from *start* to *end*, by the monotonic clock, to one worker, or if it is 0, to all."""

    kind: str
    start: float
    end: float
    worker: int = 0

    def explains(self, worker: int, first: float, second: float) -> bool:
        """Whether it may be why a task that *worker* began at *first* was begun again at *second*."""
        return self.worker in (0, worker) and self.start <= second and first <= self.end


@dataclass
class Ledger:
    """Calls and runs of *tasks* tasks; both files grow."""

    tasks: int
    calls: Path
    runs: Path
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.states = bytearray(self.tasks)
        self._sent_at = array("d", bytes(8 * self.tasks))
        self._due = array("d", bytes(8 * self.tasks))
        self._first_at = array("d", bytes(8 * self.tasks))
        self._first_by = array("I", bytes(4 * self.tasks))
        self._again: list[tuple[int, int, float, float]] = []
        self._offsets = {self.calls: 0, self.runs: 0}
        self.sent = self.unknown = self.executed = self.late_runs = self.done = 0

    def read(self) -> None:
        """Read what was written since."""
        for number, state, at, due in CALL.iter_unpack(self._new(self.calls, CALL.size)):
            self.states[number] = state
            self._sent_at[number], self._due[number] = at, due
            self.sent += state == SENT
            self.unknown += state == UNKNOWN
            self.done += bool(state == SENT and self._first_at[number])
        for number, worker, at in RUN.iter_unpack(self._new(self.runs, RUN.size)):
            first = self._first_at[number]
            if first:
                self._again.append((number, self._first_by[number], first, at))
            else:
                self._first_at[number], self._first_by[number] = at, worker
                self.executed += 1
                self.done += self.states[number] == SENT

    def open(self) -> list[int]:
        """Return the sent tasks that did not run."""
        return [number for number, state in enumerate(self.states) if state == SENT and not self._first_at[number]]

    def undone(self, number: int) -> bool:
        """Whether Redis was killed so soon after the call that it may have lost its write."""
        at = self._sent_at[number]
        return any(fault.kind == "unsynced" and at <= fault.start <= at + UNSYNCED for fault in self.faults)

    def early(self) -> int:
        """Return the number of tasks that ran before their due time."""
        return sum(0 < at < due - EXACT for at, due in zip(self._first_at, self._due, strict=True))

    def doubled(self) -> Counter[str]:
        """Count the runs after the first of each task by what explains them."""
        return Counter(self._reason(*again[1:]) for again in self._again)

    def worst(self) -> int:
        """Return the most runs that the deaths of one worker and of its children repeated."""
        repeated = Counter(again[1] for again in self._again if self._reason(*again[1:]).startswith("kill"))
        return max(repeated.values(), default=0)

    def unexplained(self) -> Iterator[tuple[int, int, float, float]]:
        """Yield number, first worker, and both times of runs that nothing explains."""
        return (again for again in self._again if self._reason(*again[1:]) == "unexplained")

    def _reason(self, worker: int, first: float, second: float) -> str:
        # Those of one worker tell more.
        faults = sorted(self.faults, key=lambda fault: not fault.worker)
        found = (fault.kind for fault in faults if fault.explains(worker, first, second))
        return next(found, "unexplained")

    def _new(self, path: Path, size: int) -> bytes:
        with path.open("rb") as file:
            file.seek(self._offsets[path])
            data = file.read()
        data = data[: len(data) // size * size]
        self._offsets[path] += len(data)
        return data
