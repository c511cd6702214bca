"""What each consumer did, one line per step, in a file that survives its SIGKILL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

CLAIMED: Final = "c"
HANDLED: Final = "h"
ACKED: Final = "a"
REFUSED: Final = "r"
LOST_ON_PURPOSE: Final = "l"


class Step(NamedTuple):
    """One line: what happened to message *number* at its n-th delivery."""

    kind: str
    number: int
    deliveries: int


class StepLog:
    """Appends steps; what was written stays, whatever happens to the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, steps: Iterable[Step]) -> None:
        """Append *steps* in one write."""
        lines = "".join(f"{step.kind} {step.number} {step.deliveries}\n" for step in steps)
        os.write(self._file, lines.encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read(path: Path) -> Iterator[Step]:
    """Yield the steps in *path*."""
    for line in path.read_text().splitlines():
        kind, number, deliveries = line.split(" ")
        yield Step(kind, int(number), int(deliveries))
