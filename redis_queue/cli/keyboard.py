"""Single keys from a terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

try:
    import termios
    import tty
except ImportError:  # pragma: no cover - no POSIX terminal
    termios = tty = None  # type: ignore[assignment]


@contextmanager
def keyboard() -> Iterator[Callable[[float], str]]:
    """Yield what waits up to so many seconds for a key and returns it, "" if none came.

    Keys are neither shown nor kept until Enter meanwhile; at the end the terminal is as it was.
    """
    if termios is None or not sys.stdin.isatty():
        yield _sleep
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield lambda seconds: _key(number, seconds)
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _key(number: int, seconds: float) -> str:
    ready, _, _ = select.select([number], [], [], seconds)
    return os.read(number, 1).decode("ascii", "replace") if ready else ""


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""
