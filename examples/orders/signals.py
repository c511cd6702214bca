"""Handle Ctrl-C and similar signals only at safe points of a run."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any

from examples.orders.errors import StoppedError


class Signals:
    """Record SIGINT, SIGTERM and SIGHUP; :meth:`check` raises StoppedError after a signal.

    An exception at any other point might leave a child that was started and not yet recorded.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Keep the SIG_IGN that nohup sets for SIGHUP.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise StoppedError after a signal."""
        if self._received is not None:
            raise StoppedError(self._received)

    def pause(self, seconds: float = 0.1) -> None:
        """Sleep, then :meth:`check`."""
        time.sleep(seconds)
        self.check()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._received = number
