"""Memory that a keeper and its worker share."""

from __future__ import annotations

import mmap
import os
import struct
from typing import Final, NamedTuple

LOOKS: Final = 1000
"""Most attempts to read the time of a renewal while it is being written."""


class RenewalTime(NamedTuple):
    """Start of a renewal: *at* by the monotonic clock, *score* by the clock of Redis, as in ``unacked_index``."""

    at: float
    score: float


class Board:
    """Memory that keeper and worker share: a mapped file with the time of the last renewal."""

    # The counts at both ends differ during a write.
    _RECORD: Final = struct.Struct("<QddQ")

    def __init__(self, file: int) -> None:
        if os.fstat(file).st_size < self._RECORD.size:
            os.ftruncate(file, self._RECORD.size)
        self._memory = mmap.mmap(file, self._RECORD.size)
        self._last = RenewalTime(0.0, 0.0)

    def write(self, time: RenewalTime) -> None:
        """Store the time of a renewal."""
        count = self._RECORD.unpack_from(self._memory)[0] + 1
        struct.pack_into("<Q", self._memory, 0, count)
        struct.pack_into("<ddQ", self._memory, 8, *time, count)

    def read(self) -> RenewalTime:
        """Return the time of the last complete renewal; zeros if there was none."""
        for _ in range(LOOKS):
            # Read in the opposite order of writing: if the time changed meanwhile, the two counts differ.
            (after,) = struct.unpack_from("<Q", self._memory, 24)
            at, score = struct.unpack_from("<dd", self._memory, 8)
            (before,) = struct.unpack_from("<Q", self._memory)
            if before == after:
                self._last = RenewalTime(at, score)
                break
        return self._last
