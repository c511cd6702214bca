"""History: what each process did, one JSON object a line, written at once so that it outlives a SIGKILL."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from redis_queue.model import CancelOutcome

Kind = Literal["invoke", "ok", "refused"]


@dataclass(frozen=True, slots=True)
class Event:
    """One step of one process.

    *kind*: ``invoke`` before a call, ``ok`` or ``refused`` after it; an invoke without either has an unknown outcome.
    *claim* counts the claims of a queue in the order in which Redis made them, *deliveries* those of the message; *at*
    and *due* are times in ms. What is put in the same *lane* (0: none) comes in the order in which it was put.
    """

    op: str
    kind: Kind
    id: str
    claim: int = 0
    at: int = 0
    due: int = 0
    deliveries: int = 0
    lane: int = 0


class History:
    """The history of one process, in a file of its own."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *events: Event) -> None:
        """Append *events* in one write."""
        lines = [json.dumps({name: value for name, value in asdict(event).items() if value}) for event in events]
        if lines:
            os.write(self._file, ("\n".join(lines) + "\n").encode())

    def end_cancel(self, id: str, outcome: CancelOutcome) -> None:
        """Append the outcome of a cancel; for a task that may have been sent the outcome stays unknown."""
        if outcome is not CancelOutcome.MAYBE_SENT:
            kind: Kind = "ok" if outcome else "refused"
            self.write(Event("cancel", kind, id, at=round(time.time() * 1000)))


def read(*paths: Path) -> Iterator[Event]:
    """Yield the events of these histories; a line that a kill cut off tells nothing."""
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            fields = _loads(line)
            if fields is not None:
                yield Event(**fields)


def _loads(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
