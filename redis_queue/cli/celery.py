"""``celery -A app redis-queue``: what needs a Celery app.

Exit codes: 0 done, 1 something could not be done, 2 unusable.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import click

from redis_queue.celery import DispatchLoop
from redis_queue.celery.adopt import Adoption
from redis_queue.celery.release import Release
from redis_queue.errors import RedisQueueError

FAILED: Final = 1
UNUSABLE: Final = 2

STOP_WITHIN: Final = 0.8
"""Seconds for the batch that a dispatcher is at when it is told to stop."""

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_dry_run = click.option("--dry-run", is_flag=True, help="List and count; change nothing.")


# What an app adds to the options of all commands is passed to this one, too.
@click.group("redis-queue", context_settings={"help_option_names": ["-h", "--help"]})
def group(**_: Any) -> None:
    """Durable delays: dispatch them, adopt what stock workers held, give all back."""


@group.command()
@click.option(
    "-l",
    "--loglevel",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="INFO",
    show_default=True,
    help="Level.",
)
@click.option("-f", "--logfile", default=None, help="File to log to.  [default: stderr]")
@_json
@click.pass_obj
def dispatch(context: Any, loglevel: str, logfile: str | None, as_json: bool) -> None:
    """Send delayed tasks into their queues when they are due, until SIGTERM or Ctrl-C.

    Workers do this by themselves. A process of its own goes on while they are deployed, or does it for all of them
    (redis_queue_dispatch = False). Any number may run. Exit code 0 when it was stopped, 2 if it cannot run.
    """
    app = context.app
    with _usable():
        app.log.setup_logging_subsystem(loglevel=loglevel, logfile=logfile)
        app.loader.import_default_modules()
        loop = DispatchLoop(app)
    # Not in the main thread: there a signal handler could meet the very lock that a wait holds.
    thread = threading.Thread(target=loop.run, name="redis-queue-dispatch", daemon=True)
    asked = threading.Event()
    with _handling(lambda *_: asked.set(), signal.SIGTERM, signal.SIGINT):
        thread.start()
        click.echo(f"dispatching as {loop.name}", err=True)
        while thread.is_alive() and not asked.is_set():
            thread.join(0.1)
        loop.stop()
        thread.join(STOP_WITHIN)
    done = {"sent": loop.total.sent, "failed": loop.total.failed}
    click.echo(json.dumps(done) if as_json else f"{done['sent']:,} sent, {done['failed']:,} failed")


@group.command()
@_dry_run
@_json
@click.pass_obj
def adopt(context: Any, dry_run: bool, as_json: bool) -> None:
    """Move delayed tasks that stock workers left in the Redis broker into the store.

    To be run once, when the extension was put into the app: stop all stock workers (a warm shutdown puts their tasks
    back into the queues), adopt, start the new workers. None is lost and none runs twice; after an interruption run it
    again. While a live worker holds such tasks in memory it refuses.

    Exit code 0: all adopted. 1: some stay in the broker. 2: refused, or it cannot run.
    """
    with _usable(), _Line("adopted") as line:
        adoption = Adoption(context.app, progress=line)
        if dry_run:
            found = [
                {"id": item.id, "task": item.task, "due_at": item.due_at.isoformat(), "in": item.place}
                for item in adoption.find()
            ]

    def result() -> dict[str, Any]:
        left = [{"id": item.id, "in": item.place, "reason": item.reason} for item in adoption.left]
        return {"adopted": adoption.adopted, "removed": adoption.removed, "left": left}

    if dry_run:
        _show({"tasks": found, "left": result()["left"]}, "{tasks} would be adopted, {left} would stay", as_json)
    else:
        text = "{adopted} adopted, {removed} taken out that were stored already, {left} left in the broker"
        _carry_out(adoption.run, result, text, as_json, line)


@group.command("release-all")
@_dry_run
@_json
@click.pass_obj
def release_all(context: Any, dry_run: bool, as_json: bool) -> None:
    """Give everything that waits in the store to the broker, as Celery's own delayed tasks.

    For taking the extension out: take it out of the app, restart clients and workers, then run this. What is due goes
    without an eta. What the broker does not take stays stored; after an interruption run it again. Dispatchers may run
    at the same time.

    Exit code 0: nothing waits any more. 1: something stays. 2: it cannot run.
    """
    with _usable(), _Line("released") as line:
        context.app.loader.import_default_modules()
        release = Release(context.app, progress=line)
        if dry_run:
            found = [
                {"id": item.id, "task": item.task, "due_at": item.due_at.isoformat(), "queue": item.queue}
                for item in release.find()
            ]

    def result() -> dict[str, Any]:
        left = [{"id": id_, "reason": reason} for id_, reason in release.refused.items()]
        known = {"released": release.released, "due": release.due, "left": left}
        try:
            return {**known, "staying": release.staying(), "dead": release.dead()}
        except RedisQueueError:
            return known

    if dry_run:
        _show({"tasks": found}, "{tasks} would be released", as_json)
    else:
        text = "{released} released, {due} of them due; {staying} stay, and {dead} dead letters"
        _carry_out(release.run, result, text, as_json, line)


class _Line:
    """A line on a terminal that tells how far it is; nothing elsewhere."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._next = 0.0
        self._width = 0

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() < self._next or not sys.stderr.isatty():
            return
        text = f"{self._verb} {done:,} of {total:,}"
        self._width = max(self._width, len(text))
        self._next = time.monotonic() + 0.1
        click.echo(f"\r{text}", nl=False, err=True)

    def clear(self) -> None:
        """Take the line away."""
        if self._width:
            click.echo(f"\r{' ' * self._width}\r", nl=False, err=True)
            self._width = 0


def _carry_out(
    run: Callable[[], None], result: Callable[[], dict[str, Any]], text: str, as_json: bool, line: _Line
) -> None:
    """Run and tell what came of it, however it ended."""
    error, code = "", 0
    try:
        with _handling(signal.default_int_handler, signal.SIGTERM):
            run()
    except KeyboardInterrupt:
        error, code = "interrupted: run it again to go on", FAILED
    except RedisQueueError as failure:
        error, code = str(failure), UNUSABLE
    finally:
        line.clear()
    done = result()
    if code == UNUSABLE and (done.get("adopted") or done.get("released")):
        code = FAILED
    if error:
        click.echo(f"error: {error}", err=True)
        done["error"] = error
    if code != UNUSABLE or as_json:
        _show(done, text, as_json)
    if code or done["left"] or done.get("staying"):
        sys.exit(code or FAILED)


@contextmanager
def _handling(handler: Callable[..., Any], *numbers: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


def _show(done: Mapping[str, Any], text: str, as_json: bool) -> None:
    """Print *done*: all of it, or its rows and a sentence with its numbers."""
    if as_json:
        click.echo(json.dumps(done))
        return
    counts = {name: len(value) if isinstance(value, list) else value for name, value in done.items()}
    for row in _rows(done):
        click.echo("  ".join(str(value) for value in row.values() if value))
    shown = {name: f"{value:,}" for name, value in counts.items() if isinstance(value, int)}
    click.echo(text.format_map({"staying": "an unknown number", "dead": "unknown", **shown}))


def _rows(done: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return [row for value in done.values() if isinstance(value, list) for row in value]


@contextmanager
def _usable() -> Iterator[None]:
    """Turn errors of redis_queue into one line on stderr and exit code 2."""
    try:
        yield
    except RedisQueueError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(UNUSABLE)


__all__ = ["group"]
