"""``redis-queue failures``: the tasks that failed."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any, Final

import click

from redis_queue.basics.options import Conditions, counted
from redis_queue.cli import options
from redis_queue.cli.access import Group
from redis_queue.cli.actions import id_arguments, rows_command
from redis_queue.cli.listing import Column, conditions, show_item, show_listing, show_rows
from redis_queue.cli.output import harmless, show_fields, wants_json
from redis_queue.monitor.model import Failure
from redis_queue.operate.access import Access
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.failure_groups import GroupSummary, failure_groups
from redis_queue.operate.items import FailureList

COLUMNS: Final[dict[str, Column]] = {
    "id": "id",
    "failed": "failed_at",
    "attempts": "attempts",
    "task": lambda row: row["task"] or None,
    "exception": lambda row: ": ".join(filter(None, (row["exception"], row["message"]))),
}

GROUP_COLUMNS: Final[dict[str, Column]] = {
    "failures": "failures",
    "first": "first_at",
    "last": "last_at",
    "task": lambda row: row["task"] or None,
    "exception": "exception",
    "new since": lambda row: row["new_since"] or None,
}


@click.group(cls=Group)
def failures() -> None:
    """List, retry and delete tasks that failed.

    Workers keep them as the setting redis_queue_keep_failures says.
    """


@failures.command("list")
@click.option("--groups", is_flag=True, help="Count those that match by task and exception; it looks at up to 2,000.")
@options.limit()
@options.body
@options.output
@conditions("failures")
def list_(access: Access, *, only: Conditions, groups: bool, limit: int, with_body: bool) -> None:
    """List failed tasks, the last one first.

    Example: redis-queue failures list --task shop.mail --since 2h
    """
    if groups:
        found = failure_groups(access, only)
        rows = [_group(one) for one in found.groups[:limit]]
        show_rows(
            access,
            {"groups": rows, "more": len(found.groups) > limit, "looked": found.looked, "all": found.is_all},
            GROUP_COLUMNS,
            keep=("first", "last"),
            below=("task", "exception"),
            nothing="no failures" if not only else f"no match among {counted(found.looked, 'failure')}",
        )
        return
    show_listing(
        access,
        "failures",
        FailureList(access, only),
        partial(_fields, with_body=with_body),
        {**COLUMNS, **({"arguments": lambda row: f"{row['args']} {row['kwargs']}"} if with_body else {})},
        limit=limit,
        keep=("id", "failed"),
        below=("task", "exception", "arguments"),
        nothing="no failures",
    )


@failures.command()
@click.argument("id")
@options.body
@options.output
def show(access: Access, *, id: str, with_body: bool) -> None:
    """Show one failed task, with its traceback."""
    found = access.monitor.failures.get(id)
    if found is None or wants_json():
        fields = None if found is None else {**_fields(found, with_body=with_body), "traceback": found.traceback}
        show_item(fields, f"no failure: {id!r}")
        return
    shown = _fields(found, with_body=with_body)
    show_fields({name: value for name, value in shown.items() if value not in ("", None)})
    for line in found.traceback.splitlines():
        click.echo(harmless(line))


for _verb in ("retry", "delete"):
    failures.add_command(rows_command(ACTIONS["failures", _verb], id_arguments, conditions("failures")))


def _group(one: GroupSummary) -> dict[str, Any]:
    row = one.row
    counts = {"failures": row.count, "first_at": row.first_at, "last_at": row.last_at, "last_id": row.last_id}
    return {**row.group._asdict(), **counts, "hours": list(one.hours), "new_since": one.release}


def _fields(failure: Failure, *, with_body: bool) -> dict[str, Any]:
    hidden = {"traceback", "body", "size", *(() if with_body else ("args", "kwargs"))}
    known = {name: value for name, value in asdict(failure).items() if name not in hidden}
    return {**known, "message_bytes": failure.size}
