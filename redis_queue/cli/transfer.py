"""``redis-queue scheduled export`` and ``import``: entries as lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import click

from redis_queue.basics.options import Conditions
from redis_queue.basics.waits import signal_handler
from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access
from redis_queue.cli.actions import carry_out
from redis_queue.cli.listing import conditions
from redis_queue.cli.output import interrupt, report
from redis_queue.model import OnConflict
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Action, Plan
from redis_queue.operate.actions.queues import One
from redis_queue.operate.audit import MAX_SUBJECTS, Subject
from redis_queue.operate.entry_file import destination_check, read_pushes, store, to_json
from redis_queue.operate.items import Entries

STDOUT: Final = "-"

IMPORT: Final = Action(One("scheduled"), "import", "Import", "imported", store)

MODES: Final[tuple[OnConflict, ...]] = ("keep", "replace", "error")


@click.command(cls=StoreCommand)
@click.argument("file", type=click.Path(dir_okay=False), default=STDOUT)
@options.delay_queue
@with_access
@conditions("entries", options.task_part)
def export(access: Access, *, file: str, name: str | None, only: Conditions) -> None:
    """Write waiting entries with their bodies into FILE (default: stdout), one JSON object per line.

    The entries stay. FILE is replaced only when the export is complete.

    Example: redis-queue scheduled export waiting.jsonl
    """
    count = 0
    with signal_handler(interrupt), atomic_file(file) as out:
        for entry, _ in Entries(access, access.delay_queue(name), only).all():
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
def import_(access: Access, *, file: IO[str], name: str | None, on_conflict: OnConflict, dry_run: bool) -> None:
    """Store the entries of an export. By default, a second import changes nothing.

    The whole FILE is read and checked before anything is stored. A line is refused if a dispatcher of the app would
    refuse its destination.

    Example: redis-queue scheduled import waiting.jsonl --dry-run
    """
    queue = access.delay_queue(name)
    pushes = list(read_pushes(file, queue, destination_check(access, queue)))
    if dry_run:
        report("to_be_imported", len(pushes))
        return
    first = [Subject(push.id, queue.name) for push in pushes[:MAX_SUBJECTS] if push.id is not None]
    plan = Plan(
        "Import",
        len(pushes),
        lambda: store(queue, pushes, on_conflict),
        [queue.name],
        f"on conflict: {on_conflict}",
        first,
    )
    carry_out(access, IMPORT, plan)


@contextmanager
def atomic_file(path: str) -> Iterator[IO[str]]:
    """Open *path* for ASCII text, ``-`` for stdout; its old content stays until the block ends without an error.

    Anything but a plain file, such as a pipe, is written to directly.
    """
    if path == STDOUT:
        yield sys.stdout
        # Before the number of exported entries is told.
        sys.stdout.flush()
        return
    try:
        # Replace the target of a link, not the link.
        target = Path(path).resolve()
        plain = target.is_file() or not target.exists()
        with _temporary(target) if plain else target.open("w", encoding="ascii") as file:
            yield file
    except OSError as error:
        # StoreUnavailableError is an OSError without errno; it is reported elsewhere.
        if error.errno is None:
            raise
        raise click.FileError(path, error.strerror) from error


@contextmanager
def _temporary(target: Path) -> Iterator[IO[str]]:
    part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}")
    try:
        # Bodies and arguments are private: only the owner may read the file.
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - Path has no mode
            if target.exists():
                part.chmod(target.stat().st_mode & 0o7777)
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
