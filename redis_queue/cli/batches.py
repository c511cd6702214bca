"""Changes in batches: with a progress bar, an end between two batches, and a report of what was done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click

from redis_queue.catalog import AnyQueue
from redis_queue.cli import options
from redis_queue.cli.access import with_access
from redis_queue.cli.audit import Record
from redis_queue.cli.confirmation import confirm
from redis_queue.cli.report import INTERRUPTED, Stop, report, signal_handler
from redis_queue.errors import RedisQueueError
from redis_queue.operate import verbs
from redis_queue.operate.access import Access
from redis_queue.operate.faults import Faults
from redis_queue.operate.verbs import Done

Problem = Callable[[int], str]
"""Takes the number of changes; returns a problem to report although no call failed, or ""."""


def run_batches(
    past: str, total: int, batches: Iterable[Done], record: Record, *, as_json: bool, problem: Problem = lambda _: ""
) -> None:
    """Run *batches* of *total* items; *record* and report how many were changed, however it ended.

    An interruption ends the work after the current batch.
    """
    stop, interrupted, tried, count, maybe_sent, error = Stop(), False, 0, 0, 0, ""
    with _progress_bar(past, total) as advance, signal_handler(stop):
        try:
            for done in batches:
                tried, count, maybe_sent = tried + done.tried, count + done.count, maybe_sent + done.maybe_sent
                advance(done.tried)
                # After the last batch there is nothing left to interrupt.
                if interrupted := stop.requested and tried < total:
                    break
        except RedisQueueError as failure:
            error = str(failure)
        except KeyboardInterrupt:
            # What the last batch did is not counted.
            interrupted = True
    record.write(count)
    if maybe_sent:
        click.echo(f"{maybe_sent:,} of them were claimed before and may have been sent: revoke them as well", err=True)
    if interrupted:
        error = INTERRUPTED
    report(past, count, error=error or problem(count), as_json=as_json)


purge_command: Final = options.together(options.name, options.dry_run, options.yes, options.as_json, with_access)
"""Options of a command that purges queues."""


def purge(
    access: Access,
    noun: str,
    sizes: Sequence[tuple[AnyQueue, int]],
    places: Sequence[Any],
    faults: Faults,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Ask, then delete as many items of each queue as *sizes* says from *places*; *faults* are reported at the end."""
    total = sum(size for _, size in sizes)
    if dry_run:
        report("to_be_deleted", total, error=faults.text(), as_json=as_json)
        return
    confirm(f"Delete {total:,} {noun}?", yes=yes)
    record = Record(access, "purge", [queue.name for queue, size in sizes if size], detail=", ".join(map(str, places)))
    batches = (done for queue, size in sizes for done in verbs.purge(queue, places, size, faults))
    run_batches("deleted", total, batches, record, as_json=as_json, problem=lambda _: faults.text())


def run_at_once(
    past: str, act: Callable[[], int], size: Callable[[], int], record: Record, *, as_json: bool, problem: Problem
) -> None:
    """Run *act*, one call that works in batches itself; *record* and report its result.

    If interrupted, that is by how much *size* went down.
    """
    before = size()
    try:
        done, error = act(), ""
    except KeyboardInterrupt:
        done, error = max(0, before - size()), INTERRUPTED
    record.write(done)
    report(past, done, error=error or problem(done), as_json=as_json)


@contextmanager
def _progress_bar(label: str, length: int) -> Iterator[Callable[[int], None]]:
    """Show progress on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        yield bar.update
