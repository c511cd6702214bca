"""``redis-queue dispatch``: a process that only sends what is due."""

from __future__ import annotations

import threading
from typing import Any, Final

import click

from redis_queue.celery.dispatch.loop import DispatchLoop
from redis_queue.cli import options
from redis_queue.cli.access import Command, with_app
from redis_queue.cli.acting import report
from redis_queue.cli.ending import stopping

STOP_WITHIN: Final = 0.8
"""Seconds for the batch that a dispatcher is at when it is told to stop."""

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@click.command(cls=Command)
@click.option(
    "-l",
    "--loglevel",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="INFO",
    show_default=True,
    help="Level.",
)
@click.option("-f", "--logfile", default=None, help="File to log to.  [default: stderr]")
@options.as_json
@with_app
def dispatch(app: Any, *, loglevel: str, logfile: str | None, as_json: bool) -> None:
    """Send delayed tasks into their queues when they are due, until SIGTERM or Ctrl-C.

    Workers do this by themselves. A process of its own goes on while they are deployed, or does it for all of them
    (redis_queue_dispatch = False). Any number may run.

    Exit code 0: it was stopped. 1: the store cannot be reached at the start. 2: it cannot run.

    Example: redis-queue -A shop dispatch
    """
    app.log.setup_logging_subsystem(loglevel=loglevel, logfile=logfile)
    app.loader.import_default_modules()
    loop = DispatchLoop(app)
    loop.open()
    # Not in the main thread: there a signal handler could meet the very lock that a wait holds.
    thread = threading.Thread(target=loop.run, name="redis-queue-dispatch", daemon=True)
    asked = threading.Event()
    with stopping(lambda *_: asked.set()):
        thread.start()
        click.echo(f"dispatching as {loop.name}", err=True)
        while thread.is_alive() and not asked.is_set():
            thread.join(0.1)
        loop.stop()
        thread.join(STOP_WITHIN)
    report("sent", loop.total.sent, as_json=as_json, more={"failed": loop.total.failed})
