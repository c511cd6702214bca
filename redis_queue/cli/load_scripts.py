"""``redis-queue load-scripts``: load the scripts for Redis users without EVAL."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

import click

from redis_queue.basics.waits import signal_handler
from redis_queue.cli import options
from redis_queue.cli.access import UrlCommand, with_url
from redis_queue.cli.output import harmless, interrupt, report
from redis_queue.errors import StoreError
from redis_queue.store.connection import connect
from redis_queue.store.script_files import all_scripts
from redis_queue.store.scripts import load_scripts as load

MAX_INTERVAL: Final = 3600


@click.command("load-scripts", cls=UrlCommand)
@click.option(
    "--every",
    type=options.Number(0.2, MAX_INTERVAL),
    help="Seconds between checks for missing scripts, until SIGTERM or Ctrl-C.  [default: load once]",
)
@options.as_json
@with_url
def load_scripts(url: str, *, every: float | None) -> None:
    """Load the scripts into Redis, for users without EVAL.

    Redis forgets them when it restarts: run this command with --every as a service, as a Redis user without
    other rights. It keeps running while Redis is away.

    Example: redis-queue load-scripts
    """
    if every is None:
        _report(_load(url))
        return
    # Ctrl-C is the usual end.
    with contextlib.suppress(KeyboardInterrupt), signal_handler(interrupt):
        reported = ""
        while True:
            error = _load_again(url)
            if error and error != reported:
                click.echo(f"error: {harmless(error)}", err=True)
            reported = error
            time.sleep(every)


def _load_again(url: str) -> str:
    """Load missing scripts and report them; return the error, if any."""
    try:
        if count := _load(url):
            _report(count)
    except StoreError as error:
        return str(error)
    return ""


def _load(url: str) -> int:
    # A new client each time: after a failover or a move of slots, an old one may stay connected to other servers.
    client: Any = connect(url, check=False)
    with contextlib.closing(client):
        return load(client)


def _report(count: int) -> None:
    report("loaded", count, more={"scripts": len(all_scripts())})
