"""Exit codes of all commands."""

from __future__ import annotations

from typing import Final

from redis_queue.errors import ConfigurationError, InvalidValueError, RedisQueueError

FAILED: Final = 1
"""Something failed, a check found an error, or the store cannot be reached."""

UNUSABLE: Final = 2
"""Invalid arguments or settings."""

INTERRUPTED_AT_ONCE: Final = 130
"""Interrupted before there was a result."""

INTERRUPTED: Final = "interrupted: run it again to go on"


def code_of(error: RedisQueueError) -> int:
    """Return the exit code for *error*."""
    return UNUSABLE if isinstance(error, InvalidValueError | ConfigurationError) else FAILED
