"""Run a command on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.support.paths import ROOT
from tests.support.wait import wait_until


class Terminal:
    """A command on a terminal of 80 columns and 24 lines; *printed* is the output so far."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._main, self._side = pty.openpty()
        fcntl.ioctl(self._side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        os.set_blocking(self._main, False)
        self.at_first = self.settings()
        self.printed = ""
        known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "redis_queue", *arguments],
            cwd=ROOT,
            env={**known, "TERM": "xterm", **environment},
            stdin=self._side,
            stdout=self._side,
            stderr=self._side,
        )

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self._side)

    def type(self, keys: str) -> None:
        os.write(self._main, keys.encode())

    def wait_for(self, text: str) -> None:
        """Wait for *text* in the output after the last call."""
        start = len(self.printed)
        wait_until(lambda: text in self._read()[start:], description=f"{text!r} on the terminal")

    def end(self) -> int:
        """Wait until the command ends; return its exit code."""
        # The command may block until its output is read.
        wait_until(lambda: (self._read(), self.process.poll() is not None)[1], description="the command to end")
        self._read()
        return self.process.returncode

    def close(self) -> None:
        """Kill the command if it still runs, and close the terminal."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        os.close(self._main)
        os.close(self._side)

    def _read(self) -> str:
        with suppress(BlockingIOError):
            while part := os.read(self._main, 65536):
                self.printed += part.decode(errors="replace")
        return self.printed


@contextmanager
def terminal(*arguments: str, **environment: str) -> Iterator[Terminal]:
    """Run `redis-queue …` on a terminal and kill it at the end of the block."""
    made = Terminal(*arguments, **environment)
    try:
        yield made
    finally:
        made.close()
