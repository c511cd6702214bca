"""Progress of a run: the unfinished messages, by the histories."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from redis_queue.validation.history import read

LOOK_EVERY: Final = 0.3
"""Seconds between two reads of all histories."""


class Progress:
    """Messages that were put but neither executed completely nor cancelled."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self._look_at = 0.0

    def is_done(self, histories: Sequence[Path]) -> bool:
        """Return whether all messages are finished."""
        if time.monotonic() >= self._look_at:
            ids: dict[tuple[str, str], set[str]] = defaultdict(set)
            for event in read(*histories):
                ids[event.op, event.kind].add(event.id)
            # An interrupted cancel may have been executed: do not wait for its message.
            cancelled = ids["cancel", "invoke"] - ids["cancel", "refused"]
            self.open = ids["put", "ok"] - ids["ack", "invoke"] - cancelled
            self._look_at = time.monotonic() + LOOK_EVERY
        return not self.open
