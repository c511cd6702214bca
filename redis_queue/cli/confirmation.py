"""Questions and previews before a change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import click

from redis_queue.cli.output import harmless, show_table
from redis_queue.cli.report import report
from redis_queue.operate.audit import Subject


def confirm(
    question: str, first: Callable[[], Sequence[Subject]] = tuple, count: int = 0, *, at: str = "", yes: bool
) -> None:
    """Go on only with ``--yes`` or after a yes on a terminal. The question shows the *first* of *count* subjects.

    *at* names the kind of their times: "due" or "died".
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{harmless(question)} There is no terminal for the question: add --yes")
    show_subjects(first(), count, at=at, err=True)
    if not click.confirm(harmless(question), err=True):
        raise click.ClickException("nothing was done")


def show_subjects(found: Sequence[Subject], count: int, *, at: str, err: bool = False) -> None:
    """Print the first of *count* messages or entries, each with its task and time."""
    if not found:
        return
    rows = [(subject.id, subject.queue, subject.at, subject.task or None) for subject in found]
    show_table(("id", "queue", at, "task"), rows, keep=("id", at), below=("task",), err=err)
    if count > len(found):
        click.echo(f"and {count - len(found):,} more", err=err)


def preview(past: str, count: int, found: Sequence[Subject], *, at: str, as_json: bool, error: str = "") -> None:
    """Print the preview of a change: *count*, and the first ones."""
    if not as_json:
        show_subjects(found, count, at=at)
    first = [
        {"id": subject.id, "queue": subject.queue, f"{at}_at": subject.at, "task": subject.task or None}
        for subject in found
    ]
    report(f"to_be_{past}", count, error=error, as_json=as_json, more={"first": first} if as_json else None)
