"""Ctrl-C and SIGTERM while a command works."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Stop:
    """Signal handler: the first signal sets *requested*, to end after the current batch; the second ends at once."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def interrupt(*_: object) -> None:
    """Signal handler that ends the command at once, as Ctrl-C does."""
    raise KeyboardInterrupt


@contextmanager
def signal_handler(handler: Callable[..., Any]) -> Iterator[None]:
    """Call *handler* on Ctrl-C and SIGTERM until the block ends."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
