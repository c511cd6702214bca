"""Results of commands: counts and errors, as text or JSON."""

from __future__ import annotations

import sys
from typing import Any

import click

from redis_queue.cli.exit_codes import FAILED
from redis_queue.cli.output import harmless, show_json
from redis_queue.operate.faults import Faults


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
