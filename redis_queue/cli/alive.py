"""``redis-queue alive``: a probe for one worker."""

from __future__ import annotations

import re
import socket
import sys
from dataclasses import asdict
from typing import Any, Final

import click

from redis_queue.basics.logs import hide_secrets
from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_store
from redis_queue.cli.output import FAILED, harmless, show_json, wants_json
from redis_queue.errors import StoreError
from redis_queue.operate.liveness import liveness
from redis_queue.store.connection import Client

REPLY_TIMEOUT: Final = 0.3
"""Seconds to wait for each reply of Redis."""

MIN_STUCK_SECONDS: Final = 2
MAX_STUCK_SECONDS: Final = 86400


@click.command(cls=StoreCommand)
@click.option(
    "--worker",
    default="celery@%h",
    show_default=True,
    help="Name of the worker, as in celery worker --hostname: %h is this host, %n its first part, %d its domain.",
)
@click.option(
    "--stuck-after",
    type=options.Number(MIN_STUCK_SECONDS, MAX_STUCK_SECONDS),
    default=60,
    show_default=True,
    help="Seconds without a report (at most 60), a turn of the event loop, or a settled message while messages wait.",
)
@click.option("--strict", is_flag=True, help="Fail if Redis cannot be reached, too.")
@options.as_json
@with_store(timeout=REPLY_TIMEOUT)
def alive(store: tuple[Client, str], *, worker: str, stuck_after: float, strict: bool) -> None:
    """Tell whether a worker is alive, busy, stopping, stuck, silent or lost, by its last report.

    It sends no broadcast, and imports no app unless -A is given, so it takes less than a second. Only if a worker
    leaves messages waiting, it waits up to two seconds for the next report.

    Exit code 0: alive, busy, stopping, silent for fewer seconds than --stuck-after, or Redis cannot be reached (a
    restart of the worker would not help). 1: stuck, silent for longer, lost, or unknown. 2: invalid arguments.

    Example: redis-queue alive --worker celery@%h
    """
    name = worker_name(worker)
    try:
        found = liveness(*store, name, stuck_after)
    except StoreError as error:
        if strict:
            raise
        _show({"worker": name, "state": "unknown", "reason": hide_secrets(str(error))})
        return
    _show(asdict(found))
    if not found.healthy:
        sys.exit(FAILED)


def _show(found: dict[str, Any]) -> None:
    if wants_json():
        show_json(found)
    else:
        click.echo(harmless(f"{found['state']}: {found['worker']}: {found['reason']}"))


def worker_name(worker: str) -> str:
    """Return the name that Celery gives a worker with ``--hostname`` *worker*."""
    name, separator, host = worker.partition("@")
    worker = f"{name if separator and name else 'celery'}@{(host if separator else name) or socket.gethostname()}"
    short, _, domain = socket.gethostname().partition(".")
    forms = {"h": socket.gethostname(), "n": short, "d": domain, "i": "0", "I": ""}
    return re.sub("%([hndiI])", lambda found: forms[found[1]], worker)
