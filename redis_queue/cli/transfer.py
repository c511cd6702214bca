"""``redis-queue scheduled export`` and ``import``: entries as lines of JSON."""

from __future__ import annotations

import json
from typing import IO, Final

import click

from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access
from redis_queue.cli.atomic_file import STDOUT, atomic_file
from redis_queue.cli.audit import Record
from redis_queue.cli.batches import run_batches
from redis_queue.cli.entry_selection import conditions
from redis_queue.cli.report import report
from redis_queue.cli.signals import interrupt, signal_handler
from redis_queue.delay.model import OnConflict
from redis_queue.operate.access import Access
from redis_queue.operate.audit import Subject
from redis_queue.operate.entries import Conditions, find
from redis_queue.operate.entry_file import destination_check, read_pushes, store, to_json
from redis_queue.operate.subjects import SHOWN

MODES: Final[tuple[OnConflict, ...]] = ("keep", "replace", "error")


@click.command(cls=StoreCommand)
@click.argument("file", type=click.Path(dir_okay=False), default=STDOUT)
@options.delay_queue
@conditions
@with_access
def export(access: Access, *, file: str, name: str | None, conditions: Conditions) -> None:
    """Write waiting entries with their bodies into FILE (default: stdout), one JSON object per line.

    The entries stay. FILE is replaced only when the export is complete.

    Example: redis-queue scheduled export waiting.jsonl
    """
    count = 0
    with signal_handler(interrupt), atomic_file(file) as out:
        for entry, _ in find(access, access.delay_queue(name), conditions):
            out.write(json.dumps(to_json(entry)) + "\n")
            count += 1
    click.echo(f"{count:,} exported", err=True)


@click.command("import", cls=StoreCommand)
@click.argument("file", type=click.File("r", encoding="utf-8"), default="-")
@options.delay_queue
@click.option(
    "--on-conflict",
    type=click.Choice(MODES),
    default="keep",
    show_default=True,
    help="What to do if an entry with the same id waits.",
)
@options.dry_run
@options.as_json
@with_access
def import_(
    access: Access, *, file: IO[str], name: str | None, on_conflict: OnConflict, dry_run: bool, as_json: bool
) -> None:
    """Store the entries of an export. By default, a second import changes nothing.

    The whole FILE is read and checked before anything is stored. A line is refused if a dispatcher of the app would
    refuse its destination.

    Example: redis-queue scheduled import waiting.jsonl --dry-run
    """
    queue = access.delay_queue(name)
    pushes = list(read_pushes(file, queue, destination_check(access, queue)))
    if dry_run:
        report("to_be_imported", len(pushes), as_json=as_json)
        return
    first = [Subject(push.id, queue.name) for push in pushes[:SHOWN] if push.id is not None]
    record = Record(access, "import", [queue.name], first, f"on conflict: {on_conflict}")
    run_batches("imported", len(pushes), store(queue, pushes, on_conflict), record, as_json=as_json)
