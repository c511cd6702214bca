"""How commands end: results as text or JSON, exit codes, Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from redis_queue.cli.output import harmless, show_json
from redis_queue.errors import ConfigurationError, InvalidValueError, RedisQueueError

if TYPE_CHECKING:
    from redis_queue.operate.queue_row import Faults

FAILED: Final = 1
"""Something failed, a check found an error, or the store cannot be reached."""

UNUSABLE: Final = 2
"""Invalid arguments or settings."""

INTERRUPTED_AT_ONCE: Final = 130
"""Interrupted before there was a result."""

INTERRUPTED: Final = "interrupted: run it again to go on"


def code_of(error: RedisQueueError) -> int:
    """Return the exit code for *error*."""
    return UNUSABLE if isinstance(error, InvalidValueError | ConfigurationError) else FAILED


def report(result: str, count: int, *, as_json: bool, error: str = "", more: dict[str, Any] | None = None) -> None:
    """Print *count* under the name *result*, and *more* counts; exits with code 1 if there is an *error*."""
    counts = {result: count, **(more or {})}
    if as_json:
        _end(error, counts)
        return
    if error:
        click.echo(f"error: {harmless(error)}", err=True)
    click.echo(", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items()))
    if error:
        sys.exit(FAILED)


def end_with(faults: Faults, shown: dict[str, Any] | None = None, *, as_json: bool = False) -> None:
    """Report *faults* after the result, or together with it (*shown*) as JSON; exits with code 1 if there are any."""
    _end(faults.text(), (shown or {}) if as_json else None)


def _end(error: str, document: dict[str, Any] | None) -> None:
    if error:
        click.echo(f"error: {harmless(error)}", err=True)
    if document is not None:
        show_json({**document, **({"error": error} if error else {})})
    if error:
        sys.exit(FAILED)


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
