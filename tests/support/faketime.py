"""Processes whose clock is wrong, and a server whose clock can be set as an operator or NTP sets that of a host."""

from __future__ import annotations

import time
from pathlib import Path

from .binaries import KINDS, default_kind
from .parts import require
from .servers import RedisServer
from .wait import wait_until

SOON = 30


def wrong_clock(**settings: str) -> dict[str, str]:
    """Return the environment of a process under libfaketime with *settings* of it."""
    return {
        "LD_PRELOAD": require("libfaketime"),
        # On a real host only the time of day is wrong, not the monotonic clock.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        **settings,
    }


def clock_off_by(seconds: int) -> dict[str, str]:
    """Return the environment of a process whose clock is *seconds* ahead, or behind if they are negative."""
    return wrong_clock(FAKETIME=f"{seconds:+d}")


class ClockServer(RedisServer):
    """A server under libfaketime; `directory` holds the file with the offset of its clock.

    Debian's redis-server does not start under it; the oldest server of a wheel replaces it.
    """

    def __init__(self, directory: Path, *args: str) -> None:
        self._file = directory / "clock"
        self._write(0)
        super().__init__(
            *args,
            kind=KINDS[0] if default_kind() == "path" else default_kind(),
            environment=wrong_clock(FAKETIME_TIMESTAMP_FILE=str(self._file), FAKETIME_NO_CACHE="1"),
        )

    def set_clock(self, offset: int) -> None:
        """Set the clock *offset* seconds ahead of the true time; return when the server uses it."""
        self._write(offset)
        with self.client() as client:
            wait_until(
                lambda: abs(client.eval("return redis.call('TIME')[1] + 0", 0) - time.time() - offset) < SOON,
                description="the server to use the new clock",
            )

    def _write(self, offset: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset:+d}\n")
        new.replace(self._file)
