"""What a worker and its keeper tell each other: a greeting, lines about messages, and the time of the last renewal."""

from __future__ import annotations

import json
import mmap
import os
import pickle
import struct
from typing import Any, Final, NamedTuple

from redis_queue.errors import InvalidValueError

MAX_READ_ATTEMPTS: Final = 1000
"""Maximum number of attempts to read the time of a renewal while it is being written."""

_LENGTH: Final = struct.Struct("<Q")
"""Length of the greeting, in front of it."""


def pack(greeting: object) -> bytes:
    """Return the first input of a keeper. Raises PicklingError, TypeError or AttributeError if that is impossible."""
    data = pickle.dumps(greeting)
    return _LENGTH.pack(len(data)) + data


def unpack(pipe: int) -> Any:
    """Read the greeting from *pipe*, to which only the worker can write. Exit if it ends before."""
    return pickle.loads(_read_exactly(pipe, *_LENGTH.unpack(_read_exactly(pipe, _LENGTH.size))))  # noqa: S301


def _read_exactly(pipe: int, size: int) -> bytes:
    # Unbuffered: the lines that follow must stay in the pipe.
    data = b""
    while len(data) < size:
        part = os.read(pipe, size - len(data))
        if not part:
            raise SystemExit
        data += part
    return data


def write_line(tag: str, score: float | None = None) -> bytes:
    """Return the line for a message that the worker fetched at *score*; None: it settled the message."""
    # A tag comes from the message and may contain line breaks.
    text = json.dumps(tag)
    return f"-{text}\n".encode() if score is None else f"+{text} {score:.6f}\n".encode()


def read_line(line: bytes) -> tuple[str, float | None]:
    """Return the tag and the score of a line without its line break. Raises InvalidValueError."""
    try:
        text = line.decode()
        tag, _, score = text[1:].rpartition(" ") if text.startswith("+") else (text[1:], "", "")
        found = json.loads(tag)
        if text[:1] in ("+", "-") and isinstance(found, str):
            return found, float(score) if text.startswith("+") else None
    except (ValueError, RecursionError):
        pass
    raise InvalidValueError(f"line={line[:80]!r}: must be a tag as JSON after + or -")


class RenewalTime(NamedTuple):
    """Start of a renewal: *at* by the monotonic clock, *score* by the clock of Redis, as in ``unacked_index``."""

    at: float
    score: float


class SharedTime:
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
        for _ in range(MAX_READ_ATTEMPTS):
            # Read in the opposite order of writing: if the time changed meanwhile, the two counts differ.
            (after,) = struct.unpack_from("<Q", self._memory, 24)
            at, score = struct.unpack_from("<dd", self._memory, 8)
            (before,) = struct.unpack_from("<Q", self._memory)
            if before == after:
                self._last = RenewalTime(at, score)
                break
        return self._last
