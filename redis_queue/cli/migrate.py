"""``redis-queue adopt`` and ``release-all``: move delayed tasks into the store, and back to the broker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from redis_queue.basics.waits import signal_handler
from redis_queue.celery.migrate import Progress
from redis_queue.celery.migrate.adopt import Adoption, HeldByWorkersError
from redis_queue.celery.migrate.release import NotReleasableError, Release
from redis_queue.cli import options
from redis_queue.cli.access import Command, with_app
from redis_queue.cli.output import (
    FAILED,
    INTERRUPTED,
    UNUSABLE,
    Stop,
    code_of,
    harmless,
    progress_bar,
    show_json,
    text_of,
    wants_json,
)
from redis_queue.errors import RedisQueueError

_dry_run = click.option("--dry-run", is_flag=True, help="List and count; change nothing.")


@click.command(cls=Command)
@_dry_run
@options.utc
@options.as_json
@with_app
def adopt(app: Any, *, dry_run: bool) -> None:
    """Move delayed tasks that stock workers left in the Redis broker into the store.

    Run it once, after you added the extension to the app: stop all stock workers (a warm shutdown puts their tasks back
    into the queues), adopt, start the new workers. No task is lost and none runs twice; after an interruption run it
    again. It refuses while a live worker holds such tasks in memory.

    Exit code 0: all adopted. 1: some stay in the broker, or Redis cannot be reached. 2: refused, or invalid broker or
    settings.

    Example: redis-queue -A shop adopt --dry-run
    """
    adoption = Adoption(app)

    def result() -> dict[str, Any]:
        left = [{"id": item.id, "in": item.place, "reason": item.reason} for item in adoption.left]
        return {"adopted": adoption.adopted, "removed": adoption.removed, "left": left}

    if dry_run:
        found = [
            {"id": item.id, "task": item.task, "due_at": item.due_at, "in": item.place} for item in adoption.find()
        ]
        _show({"tasks": found, "left": result()["left"]}, "{tasks} would be adopted, {left} would stay")
    else:
        text = "{adopted} adopted, {removed} taken out that were stored already, {left} left in the broker"
        _carry_out(adoption.run, "adopted", result, text)


@click.command("release-all", cls=Command)
@_dry_run
@click.option(
    "--long-delays",
    is_flag=True,
    help="Release tasks that are due after the visibility timeout, too: stock workers on Redis run them several times.",
)
@options.utc
@options.as_json
@with_app
def release_all(app: Any, *, dry_run: bool, long_delays: bool) -> None:
    """Publish all waiting tasks to the broker, as stock workers take them.

    To remove the extension: remove it from the app, restart clients and workers, then run this. Delayed tasks become
    Celery's own, due ones get no eta. Tasks that wait for a place in a flow, paused or not, go into their queues.
    Places, and keys of unique tasks, are freed. Tasks that the broker refuses stay stored; after an interruption run it
    again. Dispatchers may run at the same time. Schedules, dead letters, failures and history stay
    (docs/how-to/uninstall.md).

    Exit code 0: no task waits now. 1: some stay, or the store or the broker cannot be reached. 2: refused, as
    tasks would run twice, or invalid settings.

    Example: redis-queue -A shop release-all --dry-run
    """
    app.loader.import_default_modules()
    release = Release(app, long_delays=long_delays)

    def result() -> dict[str, Any]:
        left = [{"id": id_, "reason": reason} for id_, reason in release.refused.items()]
        known = {"released": release.released, "due": release.due, "from_flows": release.from_flows, "left": left}
        try:
            return {**known, "staying": release.staying(), "dead": release.dead(), "schedules": release.schedules()}
        except RedisQueueError:
            return known

    if dry_run:
        refused = release.refusal()
        found = [
            {"id": item.id, "task": item.task, "due_at": item.due_at, "queue": item.queue} for item in release.find()
        ]
        _show(
            {"tasks": found, "in_flows": release.in_flows(), "schedules": release.schedules()},
            "{tasks} would be released, and {in_flows} of flows; {schedules} schedules would be sent no more",
        )
        if refused:
            click.echo(f"error: {harmless(refused)}", err=True)
            sys.exit(UNUSABLE)
    else:
        text = (
            "{released} released, {due} of them due, and {from_flows} of flows; {staying} stay, {dead} dead letters "
            "and {schedules} schedules"
        )
        _carry_out(release.run, "released", result, text)


def _carry_out(run: Callable[[Progress], None], label: str, result: Callable[[], dict[str, Any]], text: str) -> None:
    """Run with a progress bar and report the result, however it ended; a signal interrupts it at the next step."""
    error, code, began, stop = "", 0, True, Stop()
    try:
        with progress_bar(label) as show, signal_handler(stop):
            run(_interruptible(show, stop))
    except KeyboardInterrupt:
        error, code = INTERRUPTED, FAILED
    except RedisQueueError as failure:
        error, began = str(failure), False
        code = UNUSABLE if isinstance(failure, HeldByWorkersError | NotReleasableError) else code_of(failure)
    done = result()
    if done.get("adopted") or done.get("released") or done.get("from_flows"):
        began, code = True, min(code, FAILED)
    if error:
        click.echo(f"error: {harmless(error)}", err=True)
        done["error"] = error
    if began or wants_json():
        _show(done, text)
    if code or done["left"] or done.get("staying"):
        sys.exit(code or FAILED)


def _interruptible(show: Progress, stop: Stop) -> Progress:
    def step(done: int, total: int) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        show(done, total)

    return step


def _show(done: Mapping[str, Any], text: str) -> None:
    """Print *done* as JSON, or its rows and the sentence *text* with its counts."""
    if wants_json():
        show_json(done)
        return
    counts = {name: len(value) if isinstance(value, list) else value for name, value in done.items()}
    for row in _rows(done):
        click.echo("  ".join(text_of(value) for value in row.values() if value))
    texts = {name: f"{value:,}" for name, value in counts.items() if isinstance(value, int)}
    click.echo(text.format_map({"staying": "an unknown number", "dead": "unknown", "schedules": "unknown", **texts}))


def _rows(done: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return [row for value in done.values() if isinstance(value, list) for row in value]
