"""Histories: the steps of each process, one JSON array per line, written at once so that they outlive a SIGKILL."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from redis_queue.model import Entry, Message

Kind = Literal["invoke", "ok", "refused"]


class Event(NamedTuple):
    """One step of one process.

    *kind*: ``invoke`` before a call, ``ok`` or ``refused`` after it; an invoke without either has an unknown outcome.
    *claim* counts the claims of a queue in the order in which Redis made them, *deliveries* those of the message; *at*
    and *due* are times in ms. Messages put in the same *lane* (0: none) come in the order in which they were put.
    """

    op: str
    kind: Kind
    id: str
    claim: int = 0
    at: int = 0
    due: int = 0
    deliveries: int = 0
    lane: int = 0

    @classmethod
    def of_claim(cls, id: str, held: Message | Entry, lease: float) -> Event:
        """Return the claim of *held*, whose lease was *lease* seconds long, as an event of the message *id*."""
        if held.lease is None:
            raise RuntimeError(f"{id} was claimed without a lease")
        at = round(held.lease.expires_at.timestamp() * 1000) - round(lease * 1000)
        return cls("claim", "ok", id, int(held.lease.token.partition("-")[0]), at, deliveries=held.deliveries)


class History:
    """The history of one process, in its own file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *events: Event) -> None:
        """Append *events* in one write."""
        os.write(self._file, "".join(f"{json.dumps(event)}\n" for event in events).encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read(*paths: Path) -> Iterator[Event]:
    """Yield the events of these histories; lines that a kill cut off are ignored."""
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):
                yield Event(*json.loads(line))
