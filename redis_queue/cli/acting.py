"""Commands that change something: they ask first, go in batches, and tell how far they came."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import click

from redis_queue.cli.ending import FAILED, INTERRUPTED, Stop, stopping
from redis_queue.cli.output import harmless, show_json, show_table
from redis_queue.errors import RedisQueueError
from redis_queue.inspector import AnyQueue
from redis_queue.operate.audit import Subject
from redis_queue.operate.faults import Faults
from redis_queue.store.chunks import CHUNK, chunks

Step = Callable[[], tuple[int, int]]
"""Does a batch; returns how many were looked at and how many of them were done."""

Lacking = Callable[[int], str]
"""Takes how many were done; returns what was wrong though nothing failed, "" for nothing."""


def _nothing(_: int) -> str:
    return ""


def agree(
    question: str, first: Callable[[], Sequence[Subject]] = tuple, count: int = 0, *, at: str = "", yes: bool
) -> None:
    """Go on only after a yes, on a terminal or with ``--yes``. The question shows the *first* of *count*.

    *at* names the kind of their times: "due" or "died".
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{harmless(question)} There is nobody to ask: add --yes")
    show_subjects(first(), count, at=at, err=True)
    if not click.confirm(harmless(question), err=True):
        raise click.ClickException("nothing was done")


def show_subjects(found: Sequence[Subject], count: int, *, at: str, err: bool = False) -> None:
    """Print the first of *count* messages or entries, each with its task and its time."""
    if not found:
        return
    rows = [(subject.id, subject.queue, subject.at, subject.task or None) for subject in found]
    show_table(("id", "queue", at, "task"), rows, keep=("id", at), below=("task",), err=err)
    if count > len(found):
        click.echo(f"and {count - len(found):,} more", err=err)


def preview(verb: str, count: int, found: Sequence[Subject], *, at: str, as_json: bool, error: str = "") -> None:
    """Print a preview of the change: *count*, and the first ones."""
    if not as_json:
        show_subjects(found, count, at=at)
    first = [
        {"id": subject.id, "queue": subject.queue, f"{at}_at": subject.at, "task": subject.task or None}
        for subject in found
    ]
    report(verb, count, error=error, as_json=as_json, more={"first": first} if as_json else None)


def in_batches(
    verb: str,
    items: Sequence[Any],
    act: Callable[[list[Any]], int],
    *,
    size: int,
    as_json: bool,
    lacking: Lacking = _nothing,
) -> None:
    """Do *act* with *items*, *size* at a time, and tell how many were done, however it ended."""

    def step(part: list[Any]) -> tuple[int, int]:
        return len(part), act(part)

    _carry_out(
        verb, len(items), (partial(step, part) for part in chunks(items, size)), as_json=as_json, lacking=lacking
    )


def purge(
    noun: str,
    sized: Sequence[tuple[AnyQueue, int]],
    places: Sequence[Any],
    faults: Faults,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Ask, then delete in each queue as many as it was given with from *places*, a batch at a time.

    All of the queues know the places. *faults* are told at the end.
    """
    total = sum(size for _, size in sized)
    if dry_run:
        report("to_be_deleted", total, error=faults.text(), as_json=as_json)
        return
    agree(f"Delete {total:,} {noun}?", yes=yes)
    steps = (step for queue, size in sized for step in _emptying(queue, places, size, faults))
    _carry_out("deleted", total, steps, as_json=as_json, lacking=lambda _: faults.text())


def _emptying(queue: AnyQueue, places: Sequence[Any], size: int, faults: Faults) -> Iterator[Step]:
    left = size

    def step() -> tuple[int, int]:
        nonlocal left
        done = 0
        with faults.of_queue(queue):
            done = queue.purge(*places, limit=min(CHUNK, left))
        # Others may have taken what was there.
        left = left - done if done else 0
        return done, done

    while left > 0:
        yield step


def at_once(verb: str, act: Callable[[], int], size: Callable[[], int], *, as_json: bool, lacking: Lacking) -> None:
    """Do *act*, one call that goes in batches by itself; interrupted, tell by how much *size* went down."""
    before = size()
    try:
        done, error = act(), ""
    except KeyboardInterrupt:
        done, error = max(0, before - size()), INTERRUPTED
    report(verb, done, error=error or lacking(done), as_json=as_json)


def report(verb: str, done: int, *, as_json: bool, error: str = "", more: dict[str, Any] | None = None) -> None:
    """Print what came of it; ends with exit code 1 if there was an *error*."""
    if error:
        click.echo(f"error: {harmless(error)}", err=True)
    if as_json:
        show_json({verb: done, **(more or {}), **({"error": error} if error else {})})
    else:
        counts = {verb: done, **(more or {})}
        click.echo(", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items()))
    if error:
        sys.exit(FAILED)


def end_with(faults: Faults, shown: dict[str, Any] | None = None, *, as_json: bool = False) -> None:
    """Tell what could not be looked at behind what was, *shown* with it as JSON; then the exit code is 1."""
    error = faults.text()
    if error:
        click.echo(f"error: {harmless(error)}", err=True)
    if as_json:
        show_json({**(shown or {}), **({"error": error} if error else {})})
    if error:
        sys.exit(FAILED)


def _carry_out(verb: str, total: int, steps: Iterable[Step], *, as_json: bool, lacking: Lacking) -> None:
    """Do one step after the other; an interruption ends the work behind the one that it comes in."""
    stop, interrupted, count, error = Stop(), False, 0, ""
    with _bar(verb, total) as advance, stopping(stop):
        try:
            for step in steps:
                # If it came with the last batch, nothing is left to go on with.
                if interrupted := stop.asked:
                    break
                seen, done = step()
                count += done
                advance(seen)
        except RedisQueueError as failure:
            error = str(failure)
        except KeyboardInterrupt:
            # What the last batch did is not counted.
            interrupted = True
    if interrupted:
        error = INTERRUPTED
    report(verb, count, error=error or lacking(count), as_json=as_json)


@contextmanager
def _bar(verb: str, length: int) -> Iterator[Callable[[int], None]]:
    """Show how far it is on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=length, label=verb, file=sys.stderr) as bar:
        yield bar.update
