"""Progress of a run: the messages that are not finished yet, by the histories."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from redis_queue.validation.history import read

LOOK_EVERY: Final = 0.3
"""Seconds between two looks: each reads the whole histories."""


class Progress:
    """Messages that were put, and neither executed completely nor cancelled."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self._look_at = 0.0

    def is_done(self, histories: Sequence[Path]) -> bool:
        """Return whether no message is open."""
        if time.monotonic() >= self._look_at:
            ids: dict[tuple[str, str], set[str]] = defaultdict(set)
            for event in read(*histories):
                ids[event.op, event.kind].add(event.id)
            # A cancel that was cut off may have been executed: there is no use in waiting for its message.
            cancelled = ids["cancel", "invoke"] - ids["cancel", "refused"]
            self.open = ids["put", "ok"] - ids["ack", "invoke"] - cancelled
            self._look_at = time.monotonic() + LOOK_EVERY
        return not self.open
