"""``redis-queue schedules import`` and ``export``: move schedules of other schedulers into the store."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib import import_module
from typing import IO, Any, Final

import click

from redis_queue.celery.schedules.redbeat import RedBeat
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.celery.schedules.transfer import (
    ImportRow,
    SourceSchedule,
    beat_schedule,
    export_document,
    from_document,
    import_from,
)
from redis_queue.cli import options
from redis_queue.cli.access import Command, with_app
from redis_queue.cli.actions import user
from redis_queue.cli.output import FAILED, harmless, interrupt, show_json, show_table, signal_handler, wants_json
from redis_queue.cli.transfer import STDOUT, atomic_file
from redis_queue.operate.access import AppAccess
from redis_queue.operate.actions.action import Action, Plan, Result, perform
from redis_queue.operate.actions.queues import One
from redis_queue.schedules.definition import Dst

SOURCES: Final = ("redbeat", "django-celery-beat", "beat_schedule", "file")

IMPORT: Final = Action(One("schedule"), "import", "Import", "imported", import_from)

BEFORE: Final = "Nothing was changed. Stop the old beat, then run this without --dry-run."
AFTER: Final = "Workers and dispatchers send them now. Do not start the old beat again: it would send them, too."


@click.command("import", cls=Command)
@click.argument("file", type=click.File("r", encoding="utf-8"), default=STDOUT)
@click.option("--from", "source", type=click.Choice(SOURCES), required=True, help="Where the schedules are.")
@click.option("--url", help="Redis of redbeat.  [default: redbeat_redis_url of the app, or its broker]")
@click.option("--prefix", help='Prefix of redbeat\'s keys.  [default: redbeat_key_prefix of the app, or "redbeat:"]')
@click.option("--dst", type=click.Choice(["wall", "celery"]), default="wall", show_default=True, help="See put().")
@click.option("--dry-run", is_flag=True, help="Show what would be put, changed and refused; change nothing.")
@options.utc
@options.as_json
@with_app
def import_schedules(
    app: Any, *, file: IO[str], source: str, url: str | None, prefix: str | None, dst: Dst, dry_run: bool
) -> None:
    """Store the schedules of redbeat, django-celery-beat, the app's beat_schedule, or a FILE of an export.

    Stop the old beat first. Each schedule goes on where it was: none of its runs is sent twice or left out. Disabled
    ones arrive paused. Those that cannot be moved are named with the reason. A second import changes nothing.

    Exit code 0: all moved. 1: some were refused, or a Redis cannot be reached. 2: invalid arguments or settings.

    Example: redis-queue -A shop schedules import --from redbeat --dry-run
    """
    if source != "redbeat" and (url or prefix):
        raise click.UsageError("--url and --prefix are for --from redbeat")
    app.loader.import_default_modules()
    schedules = Schedules(app)
    found: Iterable[SourceSchedule]
    if source == "redbeat":
        found = RedBeat(schedules, url or "", prefix or "", dst)
        if found.is_running():
            click.echo("warning: a beat holds redbeat's lock: stop it, or its runs are sent twice", err=True)
    elif source == "django-celery-beat":
        # Django is below contrib only.
        found = import_module("redis_queue.contrib.django.periodic_tasks").periodic_tasks(schedules, dst)
    else:
        found = beat_schedule(schedules) if source == "beat_schedule" else from_document(schedules, file.read())
    rows: list[ImportRow] = []

    def run() -> Iterator[Result]:
        for row in import_from(schedules, found, dry_run=dry_run):
            rows.append(row)
            changed = row.result in ("put", "changed")
            yield Result(int(changed), tried=1, skipped=Counter([row.reason] if row.result == "refused" else []))

    with signal_handler(interrupt):
        if dry_run:
            list(run())
        else:
            perform(AppAccess(app), IMPORT, Plan("Import", 0, run, detail=f"from {source}"), user(), Result())
    _show(rows, dry_run=dry_run)


def _show(rows: list[ImportRow], *, dry_run: bool) -> None:
    counts: Counter[str] = Counter(row.result for row in rows)
    if wants_json():
        show_json({"dry_run": dry_run, **counts, "schedules": [asdict(row) for row in rows]})
    else:
        cells = [(row.name, row.result, row.next_run, "yes" if row.paused else "", row.reason) for row in rows]
        show_table(("schedule", "result", "next run", "paused", "reason"), cells, below=("reason",))
        click.echo(", ".join(f"{count:,} {result}" for result, count in counts.items()) or "there are no schedules")
        click.echo(BEFORE if dry_run else AFTER)
    if counts["refused"]:
        sys.exit(FAILED)


@click.command("export", cls=Command)
@click.argument("file", type=click.Path(dir_okay=False), default=STDOUT)
@with_app
def export_schedules(app: Any, *, file: str) -> None:
    """Write all schedules into FILE (default: stdout) as one JSON document, by name.

    They stay. FILE is replaced only when the export is complete. Exit code 1: some cannot be read.

    Example: redis-queue -A shop schedules export schedules.json
    """
    document, unreadable = export_document(Schedules(app))
    with signal_handler(interrupt), atomic_file(file) as out:
        out.write(json.dumps(document, indent=1, sort_keys=True) + "\n")
    click.echo(f"{len(document['schedules']):,} exported", err=True)
    for name, reason in unreadable.items():
        click.echo(harmless(f"{name}: {reason}"), err=True)
    if unreadable:
        sys.exit(FAILED)
