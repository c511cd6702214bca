"""``redis-queue dispatch`` and ``putback``: the periodic work, by hand."""

from __future__ import annotations

import threading
from typing import Any, Final

import click

from redis_queue.basics.options import counted
from redis_queue.basics.waits import signal_handler
from redis_queue.catalog import put_back_each
from redis_queue.celery.dispatch.loop import DispatchLoop
from redis_queue.cli import options
from redis_queue.cli.access import Command, StoreCommand, with_access, with_app
from redis_queue.cli.output import INTERRUPTED, report
from redis_queue.model import PutBack
from redis_queue.operate.access import Access
from redis_queue.operate.listing import sized
from redis_queue.operate.queue_row import Faults
from redis_queue.store.chunks import CHUNK

STOP_WITHIN: Final = 0.8
"""Seconds to wait for the current batch after a signal."""

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

MAX_ERRORS: Final = 5
"""Maximum number of errors in the report."""


@click.command(cls=Command)
@click.option(
    "-l",
    "--loglevel",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="INFO",
    show_default=True,
    help="Log level.",
)
@click.option("-f", "--logfile", default=None, help="File to log to.  [default: stderr]")
@options.as_json
@with_app
def dispatch(app: Any, *, loglevel: str, logfile: str | None) -> None:
    """Send delayed tasks into their queues when they are due, until SIGTERM or Ctrl-C.

    Workers do this, too. A separate process keeps dispatching while workers are deployed, or if they do not dispatch
    (redis_queue_dispatch = False). You can run several at once.

    Exit code 0: stopped by a signal. 1: the store cannot be reached on startup. 2: invalid arguments or settings.

    Example: redis-queue -A shop dispatch
    """
    app.log.setup_logging_subsystem(loglevel=loglevel, logfile=logfile)
    app.loader.import_default_modules()
    loop = DispatchLoop(app)
    loop.open()
    # Not in the main thread: a signal handler there could need a lock that the interrupted wait holds.
    thread = threading.Thread(target=loop.run, name="redis-queue-dispatch", daemon=True)
    stopped = threading.Event()
    with signal_handler(lambda *_: stopped.set()):
        thread.start()
        click.echo(f"dispatching as {loop.name}", err=True)
        while thread.is_alive() and not stopped.is_set():
            thread.join(0.1)
        loop.stop()
        thread.join(STOP_WITHIN)
    report("sent", loop.total.sent, more={"failed": loop.total.failed})


@click.command(cls=StoreCommand)
@options.name
@options.dry_run
@options.as_json
@with_access
def putback(access: Access, *, name: str | None, dry_run: bool) -> None:
    """Put back the messages of expired leases, in all queues or those with one name.

    You can run several at once. An error in one queue does not stop the others.

    Example: redis-queue putback --dry-run
    """
    if dry_run:
        faults = Faults()
        expired = sized(access.queues(name, faults), access.inspector.expired, faults)
        report("expired", sum(size for _, size in expired), error=faults.text())
        return
    back, errors = PutBack(), []
    try:
        for served in put_back_each(access.catalog, access.catalog.known(name), step=CHUNK):
            back += served.back
            if served.error is not None:
                errors.append(f"{served.name}: {served.error}")
    except KeyboardInterrupt:
        errors.append(INTERRUPTED)
    shown = [*errors[:MAX_ERRORS], *([counted(len(errors) - MAX_ERRORS, "more error")] if errors[MAX_ERRORS:] else [])]
    report("returned", back.returned, error="; ".join(shown), more={"dead": back.dead})
