"""The progress of a run, for the user."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

Bars = Mapping[str, tuple[int, int]]
"""For each bar the number of done items, and the total."""


class Screen(Protocol):
    """Show a run; a context manager."""

    def __enter__(self) -> Screen:
        """Begin."""
        ...

    def __exit__(self, *_: object) -> None:
        """End; the messages stay visible."""
        ...

    def say(self, text: str) -> None:
        """Show a message."""
        ...

    def show(self, bars: Bars) -> None:
        """Show the progress."""
        ...


def screen(console: Console) -> Screen:
    """Return a live screen on a terminal, otherwise one that prints lines."""
    return _Live(console) if console.is_interactive and sys.stdout.isatty() else _Lines()


class _Live:
    def __init__(self, console: Console) -> None:
        self._started = time.monotonic()
        self._now = "starting"
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description:16}"), BarColumn(40), MofNCompleteColumn(), console=console
        )
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=8)

    def __enter__(self) -> _Live:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._live.console.print(f"[dim]{self._seconds()}[/] {text}", highlight=False)
        self._now = text

    def show(self, bars: Bars) -> None:
        for name, (done, total) in bars.items():
            if name not in self._bars:
                self._bars[name] = self._progress.add_task(name, total=total)
            self._progress.update(self._bars[name], completed=done)

    def _render(self) -> Group:
        return Group(self._progress, Text.assemble((self._seconds(), "dim"), " ", (self._now, "bold")))

    def _seconds(self) -> str:
        return f"{time.monotonic() - self._started:5.1f} s"


class _Lines:
    EVERY = 2.0

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._shown = -self.EVERY

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:5.1f} s {text}", flush=True)

    def show(self, bars: Bars) -> None:
        if time.monotonic() - self._shown >= self.EVERY:
            self._shown = time.monotonic()
            self.say(", ".join(f"{name} {done}/{total}" for name, (done, total) in bars.items()))
