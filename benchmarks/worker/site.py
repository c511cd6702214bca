"""The server and the size of a run, and the rows of its table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers of tasks, messages and workers, and the most seconds for the tasks of one worker.

    *far_seconds* is for a Redis far away; *counted*: tasks whose commands are counted; *single*: tasks for one idle
    worker, *messages*: for *idle_workers*.
    """

    solo: int = 20_000
    prefork: int = 10_000
    seconds: float = 8.0
    far_seconds: float = 3.0
    counted: int = 3_000
    idle_workers: int = 200
    messages: int = 40
    single: int = 150


SMALL = Scale(
    solo=4_000, prefork=2_000, seconds=4.0, far_seconds=2.0, counted=1_000, idle_workers=50, messages=20, single=50
)


@dataclass(frozen=True, slots=True)
class Site:
    """A Redis at *url*, and the number of alternating *rounds*; *tell* prints a line of progress."""

    url: str
    rounds: int
    scale: Scale
    tell: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: a value for each mode; None if it was not measured."""

    text: str
    values: Sequence[float | None]
    digits: int = 0

    def line(self) -> str:
        """Return the line of the table."""
        cells = ("-" if value is None else f"{value:,.{self.digits}f}" for value in self.values)
        return f"{self.text:44}" + "".join(f"{cell:>10}" for cell in cells)
