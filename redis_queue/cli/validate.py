"""``redis-queue validate`` and ``load-scripts``: try out a Redis, and load the scripts into it."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any, Final

import click

from redis_queue.basics.waits import signal_handler
from redis_queue.cli import options
from redis_queue.cli.access import UrlCommand, name_of_app, required_app, url_of, with_url
from redis_queue.cli.output import FAILED, harmless, interrupt, progress_bar, report, show_json, wants_json
from redis_queue.errors import StoreError
from redis_queue.store.connection import connect
from redis_queue.store.script_files import all_scripts
from redis_queue.store.scripts import load_scripts as load
from redis_queue.validation import Plan, Report
from redis_queue.validation import validate as run

_OF_CELERY: Final = ("pool", "concurrency")
_OF_BOTH: Final = ("messages", "lease")

MAX_INTERVAL: Final = 3600


@click.command(cls=UrlCommand)
@click.option("--celery", is_flag=True, help="Check the broker and workers of the Celery app; takes about a minute.")
@click.option("--messages", type=int, help="Number of messages.  [default: 20000; of Celery 500]")
@click.option("--lose-every", type=int, help="Lose every n-th message on purpose; 0: none.  [default: 2]")
@click.option("--batch", type=int, help="Messages per claim and ack, 1 to 500.  [default: 10]")
@click.option("--consumers", type=int, help="Consumer processes.  [default: 2]")
@click.option("--kill", is_flag=True, default=None, help="Kill consumers with SIGKILL, up to four times a second.")
@click.option("--lease", type=float, help="Length of a lease in seconds.  [default: 1; of Celery 5]")
@click.option("--prefix", help="Prefix of the keys; must not be in use.  [default: a random one]")
@click.option("-P", "--pool", help="With --celery: pool of the workers.  [default: as the app sets it]")
@click.option("-c", "--concurrency", type=int, help="With --celery: size of the pool.  [default: as the app sets it]")
@options.json_flag("Print one JSON object instead of a table.")
@click.pass_context
def validate(ctx: click.Context, /, *, celery: bool, **values: Any) -> None:
    """Put numbered messages, lose some on purpose, kill consumers, and compare the results.

    With --celery, a worker of the app is killed while it runs tasks of this command, some of them delayed, from a
    queue of its own. It runs no other task and reads no other queue.

    All keys have a separate prefix and are deleted at the end. Exit code 0: every promise was kept. 1: one was
    broken, or a server cannot be reached. 2: invalid arguments or settings.

    Example: redis-queue validate --messages 1000 --kill

    Example: redis-queue validate --celery -A shop
    """
    given = {name: value for name, value in values.items() if value is not None}
    for name in given:
        if name not in _OF_BOTH and (name in _OF_CELERY) != celery:
            raise click.UsageError(f"--{name.replace('_', '-')} cannot be used with{'' if celery else 'out'} --celery")
    with signal_handler(interrupt), progress_bar("handled") as show:
        if celery:
            found = _of_celery(ctx, given, show)
        else:
            plan = Plan(url=url_of(ctx), **given)
            found = run(plan, lambda done: show(done, plan.messages))
    if wants_json():
        show_json(found.as_dict())
    else:
        click.echo(_table(found))
    if not found.passed:
        sys.exit(FAILED)


def _of_celery(ctx: click.Context, given: dict[str, Any], show: Any) -> Report:
    from redis_queue.celery.validation import CeleryPlan, validate_app  # noqa: PLC0415 - Celery takes long

    app, name = required_app(ctx), name_of_app(ctx)
    if name is None:
        raise click.UsageError("--celery starts workers: name the app, as in redis-queue validate --celery -A APP")
    plan = CeleryPlan(name, **given)
    return validate_app(app, plan, lambda done: show(done, plan.messages))


WORDS: Final = {
    "lost": "put, and never acked",
    "doubled": "acked twice, or came again after their ack",
    "unknown": "came, and nobody had put them",
    "early": "came before they were due",
    "out_of_order": "came before a message that was put earlier",
    "lost_on_purpose": "dropped without an ack, because of --lose-every",
    "handled_again": "came again before their ack, as promised",
    "late_acks_refused": "after their lease had ended",
    "redelivered_within_s": "after the kill, the slowest",
    "late_p50_s": "from when delayed tasks were due until they started, with the time in which workers were dead",
    "late_max_s": "the latest of them",
    "left_over": "still stored at the end",
}
"""What the figures of a report count."""


def _table(report: Report) -> str:
    rows = report.as_dict()
    verdict = "passed: nothing lost, nothing doubled" if rows.pop("passed") else "FAILED"
    lines = [f"{name.replace('_', ' '):20}{value:>12,}  {WORDS.get(name, '')}".rstrip() for name, value in rows.items()]
    return "\n".join([*lines, "", verdict])


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
