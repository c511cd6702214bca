"""``redis-queue top``: live counts and rates of all queues."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import click

from redis_queue.basics.waits import signal_handler
from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access
from redis_queue.cli.output import FAILED, WIDTH, harmless, interrupt, location_of, screen_width, show_json, wants_json
from redis_queue.cli.top_screen import SORTS, QueueKey, Rates, Sort, draw, in_order, rates, rates_of
from redis_queue.errors import StoreUnavailableError
from redis_queue.operate.access import Access
from redis_queue.operate.queue_row import Overview

QUIT: Final = "q"


@click.command(cls=StoreCommand)
@click.option(
    "--interval", type=options.Number(0.2, 60), default=2.0, show_default=True, help="Seconds between two samples."
)
@click.option("--sort", type=click.Choice(SORTS), default=SORTS[0], show_default=True, help="Order of the queues.")
@click.option("--count", type=click.IntRange(1, 1_000_000), help="Number of samples.  [default: 1 unless live]")
@options.utc
@options.json_flag("Print one JSON object per sample and line.")
@with_access
def top(access: Access, *, interval: float, sort: Sort, count: int | None) -> None:
    """Show counts and rates of all queues until q or Ctrl-C: with an app, also those of Celery's queues.

    If Redis cannot be reached, it shows the error and keeps trying. Rates are per second, between two samples; those of
    Celery's queues are of the last five minutes. Into a file or a pipe, and with --json, it writes samples one after
    another instead of a live view.

    Example: redis-queue top --count 1
    """
    sampler = TopSampler(access, sort)
    # Ctrl-C is a usual end.
    with contextlib.suppress(KeyboardInterrupt), signal_handler(interrupt):
        if wants_json() or not sys.stdout.isatty():
            _write(sampler, interval, count or 1)
        else:
            _show(sampler, interval, count)


class TopSampler:
    """The last counts of all queues that Redis answered, and the *error* if it did not answer at the last look.

    *speeds* are the rates since the look before.
    """

    def __init__(self, access: Access, sort: Sort) -> None:
        self.overview: Overview | None = None
        self.speeds: dict[QueueKey, Rates] = {}
        self.error = ""
        self._access = access
        self._sort: Final = sort

    def look(self) -> None:
        """Read the counts; an unavailable Redis is part of the result, not an error."""
        try:
            now, rows = self._access.overview()
        except StoreUnavailableError as error:
            self.speeds, self.error = {}, str(error)
            return
        self.speeds = {**rates(self.overview, now), **(rates_of(rows) if self.overview is not None else {})}
        self.overview, self.error = now, ""

    def text(self, *, width: int, height: int | None = None) -> list[str]:
        """Return the result as lines of text."""
        place = location_of(self._access.catalog)
        return draw(place, self.overview, self.speeds, self._sort, error=self.error, width=width, height=height)

    def document(self) -> dict[str, Any]:
        """Return the result as a document."""
        if self.error or self.overview is None:
            return {"error": self.error}
        rows = []
        for row in in_order(self.overview.queues, self.speeds, self._sort):
            speed = self.speeds.get((row.kind, row.name))
            rows.append({**asdict(row), "rates": None if speed is None else asdict(speed)})
        return {"at": self.overview.at, "prefix": self._access.catalog.prefix, "queues": rows}


def _write(sampler: TopSampler, interval: float, count: int) -> None:
    """Write *count* samples; exits with code 1 if Redis was unavailable at the last one."""
    for number in range(count):
        if number:
            time.sleep(interval)
        sampler.look()
        if sampler.error:
            click.echo(f"error: {harmless(sampler.error)}", err=True)
        if wants_json():
            show_json(sampler.document())
        elif not sampler.error:
            click.echo("\n".join([*([""] if number else []), *sampler.text(width=screen_width() or WIDTH)]))
    if sampler.error:
        sys.exit(FAILED)


def _show(sampler: TopSampler, interval: float, count: int | None) -> None:
    """Draw a sample after each *interval*, on a screen whose old content comes back at the end."""
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra
        from rich.live import Live  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ImportError as error:
        raise click.ClickException(
            "the live view needs rich: pip install 'celery-redis-queue[cli]', or add --json"
        ) from error
    console = Console(highlight=False, markup=False, emoji=False)
    with Live(console=console, screen=True, auto_refresh=False) as live, _keyboard() as pressed:
        number = 0
        while count is None or number < count:
            if number and pressed(interval) == QUIT:
                return
            number += 1
            sampler.look()
            lines = sampler.text(width=console.width, height=console.height)
            live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)


@contextmanager
def _keyboard() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits up to the given seconds for a key; it returns "" if none was pressed.

    Until the block ends, the terminal shows no keys and does not wait for Enter.
    """
    if not sys.stdin.isatty():
        yield partial(_key, [])
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield partial(_key, [number])
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _key(terminals: Sequence[int], seconds: float) -> str:
    ready, _, _ = select.select(terminals, [], [], seconds)
    return os.read(ready[0], 1).decode("ascii", "replace") if ready else ""
