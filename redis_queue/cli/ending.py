"""How a command ends: its exit code, and what a signal does."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from redis_queue.celery.migrate.adopt import HeldByWorkersError
from redis_queue.errors import ConfigurationError, InvalidValueError, RedisQueueError

FAILED: Final = 1
"""Something failed or was found to be wrong, or the store cannot be reached."""

UNUSABLE: Final = 2
"""It was asked for what cannot be."""

INTERRUPTED_AT_ONCE: Final = 130

INTERRUPTED: Final = "interrupted: run it again to go on"


def code_of(error: RedisQueueError) -> int:
    """Return the exit code for *error*."""
    return UNUSABLE if isinstance(error, InvalidValueError | ConfigurationError | HeldByWorkersError) else FAILED


class Stop:
    """The handler of a signal: *asked* tells that work is to end behind what it is at. Asked again, it ends at once."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def interrupt(*_: object) -> None:
    """Be the handler of a signal that ends work at once, as Ctrl-C does."""
    raise KeyboardInterrupt


@contextmanager
def stopping(stop: Callable[..., Any]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM call *stop* meanwhile."""
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
