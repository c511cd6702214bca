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
    """Yield a function that waits up to the given seconds for a key; it returns "" if none was pressed.

    Until the block ends, the terminal shows no keys and does not wait for Enter.
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
