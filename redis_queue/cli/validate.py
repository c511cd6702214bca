"""``redis-queue validate``: check on your own Redis that no message is lost."""

from __future__ import annotations

import sys
from typing import Any

import click

from redis_queue.cli.access import UrlCommand, with_url
from redis_queue.cli.options import json_flag
from redis_queue.cli.output import FAILED, progress_bar, show_json, wants_json
from redis_queue.validation import Plan, Report
from redis_queue.validation import validate as run


@click.command(cls=UrlCommand)
@click.option("--messages", type=int, default=20_000, show_default=True, help="Number of messages.")
@click.option(
    "--lose-every", type=int, default=2, show_default=True, help="Lose every n-th message on purpose; 0: none."
)
@click.option("--batch", type=int, default=10, show_default=True, help="Messages per claim and ack, 1 to 500.")
@click.option("--consumers", type=int, default=2, show_default=True, help="Consumer processes.")
@click.option("--kill", is_flag=True, help="Kill consumers with SIGKILL, up to four times a second.")
@click.option("--lease", type=float, default=1.0, show_default=True, help="Length of a lease in seconds.")
@click.option("--prefix", default=None, help="Prefix of the keys; must not be in use.  [default: a random one]")
@json_flag("Print one JSON object instead of a table.")
@with_url
def validate(url: str, *, prefix: str | None, **options: Any) -> None:
    """Put numbered messages, lose some on purpose, kill consumers, and compare the results.

    All keys have a separate prefix and are deleted at the end. Exit code 0: every promise was kept. 1: one was
    broken, or Redis cannot be reached. 2: invalid arguments or settings.

    Example: redis-queue validate --messages 1000 --kill
    """
    if prefix is not None:
        options["prefix"] = prefix
    plan = Plan(url=url, **options)
    with progress_bar("handled") as show:
        report = run(plan, lambda done: show(done, plan.messages))
    if wants_json():
        show_json(report.as_dict())
    else:
        click.echo(_table(report))
    if not report.passed:
        sys.exit(FAILED)


def _table(report: Report) -> str:
    rows = report.as_dict()
    verdict = "passed: nothing lost, nothing doubled" if rows.pop("passed") else "FAILED"
    lines = [f"{name.replace('_', ' '):20}{value:>12,}" for name, value in rows.items()]
    return "\n".join([*lines, "", verdict])
