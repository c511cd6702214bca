"""``redis-queue schedules``: periodic tasks in the store; import from other schedulers, and export."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib import import_module
from typing import IO, Any, Final

import click
from celery import Celery

from redis_queue.basics.times import from_ms, span_text
from redis_queue.basics.waits import signal_handler
from redis_queue.celery.schedules.declaration import Declaration
from redis_queue.celery.schedules.redbeat import RedBeat
from redis_queue.celery.schedules.schedules import MAX_NEXT, Schedules
from redis_queue.celery.schedules.transfer import (
    ImportRow,
    SourceSchedule,
    beat_schedule,
    export_document,
    from_document,
    import_from,
)
from redis_queue.cli import options
from redis_queue.cli.access import Command, Group, with_app
from redis_queue.cli.actions import act, one_command, user
from redis_queue.cli.listing import Column, Row, show_rows
from redis_queue.cli.output import (
    FAILED,
    end_with,
    harmless,
    interrupt,
    show_fields,
    show_json,
    show_location,
    show_table,
    wants_json,
)
from redis_queue.cli.transfer import STDOUT, atomic_file
from redis_queue.operate.access import Access, AppAccess
from redis_queue.operate.actions.action import Action, Plan, Result, perform
from redis_queue.operate.actions.queues import One
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.schedules import STATES, ScheduleList, State, definition_fields, find_row, with_events
from redis_queue.schedules.definition import Dst

SHOWN: Final = 10
"""Number of runs and of events that are shown."""

DECLARE: Final = Action(One("schedules"), "declare", "Declare", "declared", lambda *_: None)

_name: Final = click.argument("name")


@click.group(cls=Group)
def schedules() -> None:
    """List, change and pause periodic tasks, send them at once, and see their runs.

    Workers send them: those of the code with redis_queue_schedules = True, and those that were put at run time.
    """


@schedules.command("list")
@click.option("--match", "part", default="", help="Only names and tasks that contain this text.")
@click.option("--state", type=click.Choice(STATES), help="Only schedules in this state.")
@options.limit()
@options.output
def list_(access: Access, *, part: str, state: State | None, limit: int) -> None:
    """List schedules, those first that are sent next.

    Late: by how much the last run was sent late. Skipped: runs that were missed, and those of pauses.

    Example: redis-queue schedules list --match shop.report --state active
    """
    listing = ScheduleList(access, part, state)
    found, more = listing.first(limit)
    nothing, hint = listing.nothing("no schedules")
    columns: dict[str, Column] = {
        "name": "name",
        "next run": "next_run",
        "last": lambda row: (row["last_run"] or {}).get("outcome"),
        "late": lambda row: span_text((row["last_run"] or {}).get("late"), parts=1),
        "runs": "runs",
        "skipped": lambda row: sum(row["skipped"].values()),
        "state": "state",
        "rules": "rules",
        "zone": "timezone",
        "task": "task",
        "error": "error",
    }
    rows = [row.document for row in with_events(access, found)]
    if not any(row["error"] for row in rows):
        del columns["error"]
    document = {"schedules": rows, "more": more}
    below = ("rules", "zone", "task", "error")
    show_rows(access, document, columns, keep=("next run",), below=below, nothing=nothing, hint=hint)


@schedules.command()
@_name
@options.body
@options.output
def show(access: Access, *, name: str, with_body: bool) -> None:
    """Show the schedule NAME: its definition, its next and its last runs, its events, and why runs were skipped.

    Example: redis-queue schedules show nightly
    """
    row = find_row(access, name)
    definition = row.schedule.definition
    next_runs = access.schedules.next_runs(name, SHOWN) if definition is not None and not row.error else []
    runs = [
        {"id": run.id, "due": run.due, "sent": run.sent_at, "outcome": run.outcome, "ended": run.ended_at}
        for run in row.runs
    ]
    events = [
        {"at": from_ms(event.at), "event": event.kind, "runs": event.count or None, "text": event.text or None}
        for event in row.events
    ]
    known = definition_fields(definition, with_body=with_body)
    if wants_json():
        show_json({**row.document, "definition": known, "next_runs": next_runs, "runs_sent": runs, "events": events})
        return
    told = row.document
    counts = {f"skipped, {reason}": count or None for reason, count in told["skipped"].items()}
    fields = {"name": name, "state": row.state, "error": row.error, "next_run": told["next_run"], **known}
    fields |= {"pause_ends": told["pause_ends"], "runs": told["runs"], "failed": told["failed"] or None, **counts}
    show_fields({label: value for label, value in fields.items() if value not in ("", None)})
    tables: list[list[dict[str, Any]]] = [[{"next run": at} for at in next_runs], runs, events]
    for rows in filter(None, tables):
        click.echo()
        show_table(list(rows[0]), [list(row.values()) for row in rows[:SHOWN]], keep=("id",), below=("text",))
    show_location(access.catalog)


@schedules.command("next")
@_name
@click.option("-n", "count", type=click.IntRange(1, MAX_NEXT), default=SHOWN, show_default=True, help="Number of runs.")
@options.output
def next_(access: Access, *, name: str, count: int) -> None:
    """Show the next due times of the schedule NAME, as if it were not paused.

    Example: redis-queue schedules next nightly -n 3
    """
    rows = [{"due": at} for at in access.schedules.next_runs(name, count)]
    show_rows(access, {"next_runs": rows}, {"due": "due"}, nothing="no more runs")


@schedules.command()
@click.option("--force", is_flag=True, help="Use this version, also if another one was declared after it.")
@options.as_json
@with_app
def declare(app: Celery, *, force: bool) -> None:
    """Store the app's beat_schedule, as its workers do, and tell what changed.

    Exits with code 1 if a schedule was refused, or if a newer version is in force: --force is for a rollback.

    Example: redis-queue -A shop schedules declare --force
    """
    app.loader.import_default_modules()
    app.finalize()
    access = AppAccess(app)
    report = Declaration(access.schedules).make(force=force)
    if changed := [*report.changed, *report.deleted]:
        plan = Plan("Declare", len(changed), lambda: iter([Result(len(changed))]), changed)
        act(access, DECLARE, plan)
    changes = {"changed": report.changed, "deleted": report.deleted}
    lines = [f"{len(names):,} {verb}: {', '.join(names)}" for verb, names in changes.items() if names]
    problems = [f"{name}: {why}" for name, why in report.refused.items()]
    if report.newer:
        problems.append(f"version {report.newer} is newer: nothing was changed; for a rollback, add --force")
    document = {**changes, "refused": report.refused, "newer": report.newer or None}
    end_with("; ".join(problems), document, "\n".join(lines) or "nothing to change")


def _document(access: Access, scope: Mapping[str, Any]) -> Row:
    return find_row(access, scope["name"]).document


for _verb in ("put", "pause", "resume", "run"):
    schedules.add_command(
        one_command(ACTIONS["schedule", f"schedule-{_verb}"], _name, document=_document, name=_verb, previews=True)
    )
for _verb in ("delete", "backfill"):
    schedules.add_command(one_command(ACTIONS["schedule", f"schedule-{_verb}"], _name, name=_verb))


SOURCES: Final = ("redbeat", "django-celery-beat", "beat_schedule", "file")

IMPORT: Final = Action(One("schedule"), "import", "Import", "imported", import_from)

BEFORE: Final = "Nothing was changed. Stop the old beat, then run this without --dry-run."
AFTER: Final = "Workers and dispatchers send them now. Do not start the old beat again: it would send them, too."


@schedules.command("import", cls=Command)
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
    store = Schedules(app)
    found: Iterable[SourceSchedule]
    if source == "redbeat":
        found = RedBeat(store, url or "", prefix or "", dst)
        if found.is_running():
            click.echo("warning: a beat holds redbeat's lock: stop it, or its runs are sent twice", err=True)
    elif source == "django-celery-beat":
        # Django is below contrib only.
        found = import_module("redis_queue.contrib.django.periodic_tasks").periodic_tasks(store, dst)
    else:
        found = beat_schedule(store) if source == "beat_schedule" else from_document(store, file.read())
    rows: list[ImportRow] = []

    def run() -> Iterator[Result]:
        for row in import_from(store, found, dry_run=dry_run):
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


@schedules.command("export", cls=Command)
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
