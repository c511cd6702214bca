"""Lines in which a worker tells its keeper which messages it holds."""

from __future__ import annotations

import json
import struct
from typing import Final

from redis_queue.errors import InvalidValueError

LENGTH: Final = struct.Struct("<Q")
"""Length of the greeting, in front of it."""


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
