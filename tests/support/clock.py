"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Final

START: Final = 1_700_000_000_000


class Clock:
    """The `clock` of a queue, in ms since the epoch."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += round(seconds * 1000)


def when(seconds: float) -> datetime:
    """Return the time *seconds* after `START`."""
    return datetime.fromtimestamp(START / 1000, timezone.utc) + timedelta(seconds=seconds)
