"""``redis-queue top``: live counts and rates of all queues."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

import click

from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access
from redis_queue.cli.output import (
    FAILED,
    WIDTH,
    harmless,
    interrupt,
    location_of,
    screen_width,
    show_json,
    signal_handler,
    wants_json,
)
from redis_queue.cli.top_screen import SORTS, QueueKey, Rates, Sort, draw, in_order, rates, rates_of
from redis_queue.errors import StoreUnavailableError
from redis_queue.operate.access import Access
from redis_queue.operate.queue_row import Overview

try:
    import termios
    import tty
except ImportError:  # pragma: no cover - no POSIX terminal
    termios = tty = None  # type: ignore[assignment]

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


@dataclass(frozen=True, slots=True)
class TopSample:
    """A sample: the last *overview* that Redis answered, and the *error* if it did not answer now."""

    overview: Overview | None
    speeds: dict[QueueKey, Rates]
    error: str = ""


class TopSampler:
    """Samples of all queues, with the rates since the sample before."""

    def __init__(self, access: Access, sort: Sort) -> None:
        self.prefix = access.catalog.prefix
        self.place = location_of(access.catalog)
        self.sort: Final = sort
        self._access = access
        self._last: Overview | None = None

    def sample(self) -> TopSample:
        """Take a sample; an unavailable Redis is part of it, not an error."""
        try:
            now, rows = self._access.overview()
        except StoreUnavailableError as error:
            return TopSample(self._last, {}, str(error))
        before, self._last = self._last, now
        return TopSample(now, {**rates(before, now), **(rates_of(rows) if before is not None else {})})

    def text(self, now: TopSample, *, width: int, height: int | None = None) -> list[str]:
        """Return the sample *now* as lines of text."""
        return draw(self.place, now.overview, now.speeds, self.sort, error=now.error, width=width, height=height)


def _write(sampler: TopSampler, interval: float, count: int) -> None:
    """Write *count* samples; exits with code 1 if Redis was unavailable at the last one."""
    for number in range(count):
        if number:
            time.sleep(interval)
        sample = sampler.sample()
        if sample.error:
            click.echo(f"error: {harmless(sample.error)}", err=True)
        if wants_json():
            show_json(_fields(sampler, sample))
        elif sample.overview is not None and not sample.error:
            click.echo("\n".join([*([""] if number else []), *sampler.text(sample, width=screen_width() or WIDTH)]))
    if sample.error:
        sys.exit(FAILED)


def _fields(sampler: TopSampler, sample: TopSample) -> dict[str, Any]:
    if sample.error or sample.overview is None:
        return {"error": sample.error}
    rows = []
    for row in in_order(sample.overview.queues, sample.speeds, sampler.sort):
        speed = sample.speeds.get((row.kind, row.name))
        rows.append({**asdict(row), "rates": None if speed is None else asdict(speed)})
    return {"at": sample.overview.at, "prefix": sampler.prefix, "queues": rows}


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
            lines = sampler.text(sampler.sample(), width=console.width, height=console.height)
            live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)


@contextmanager
def _keyboard() -> Iterator[Callable[[float], str]]:
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
