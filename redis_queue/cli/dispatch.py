"""``redis-queue dispatch``: a dispatcher process."""

from __future__ import annotations

import threading
from typing import Any, Final

import click

from redis_queue.celery.dispatch.loop import DispatchLoop
from redis_queue.cli import options
from redis_queue.cli.access import Command, with_app
from redis_queue.cli.report import report, signal_handler

STOP_WITHIN: Final = 0.8
"""Seconds to wait for the current batch after a signal."""

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


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
def dispatch(app: Any, *, loglevel: str, logfile: str | None, as_json: bool) -> None:
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
    report("sent", loop.total.sent, as_json=as_json, more={"failed": loop.total.failed})
