"""How commands end: results as text or JSON, exit codes, Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import click

from redis_queue.cli.output import harmless, show_json, wants_json
from redis_queue.errors import ConfigurationError, InvalidValueError, RedisQueueError

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


def report(result: str, count: int, *, error: str = "", more: Mapping[str, Any] | None = None) -> None:
    """Print *count* under the name *result*, and *more* counts; exits with code 1 if there is an *error*.

    What else is in *more* is printed as JSON only.
    """
    known = {result: count, **(more or {})}
    counts = {name.replace("_", " "): number for name, number in known.items() if isinstance(number, int)}
    end_with(error, known, ", ".join(f"{number:,} {name}" for name, number in counts.items()))


def end_with(error: str, document: Mapping[str, Any], text: str = "") -> None:
    """Report an *error*, if any, and print *document* as JSON, or *text*; exits with code 1 if there is an error."""
    if error:
        click.echo(f"error: {harmless(error)}", err=True)
    if wants_json():
        show_json({**document, **({"error": error} if error else {})})
    elif text:
        click.echo(text)
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
