"""``redis-queue failures``: the tasks that failed."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import click

from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.actions import id_arguments, rows_command
from redis_queue.cli.listing import conditions, show_listing
from redis_queue.cli.output import harmless, show_count, show_fields, show_json, show_place, show_table
from redis_queue.cli.report import report
from redis_queue.monitor.model import Failure, GroupRow
from redis_queue.operate.access import Access
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.items import FailureList
from redis_queue.operate.listing import Conditions


@click.group(cls=Group)
def failures() -> None:
    """List, retry and delete tasks that failed.

    Workers keep them as the setting redis_queue_keep_failures says.
    """


@failures.command("list", cls=StoreCommand)
@click.option("--groups", is_flag=True, help="Only count them by task and exception.")
@options.limit()
@options.body
@options.utc
@options.as_json
@with_access
@conditions("failures")
def list_(access: Access, *, only: Conditions, groups: bool, limit: int, with_body: bool, as_json: bool) -> None:
    """List failed tasks, the last one first.

    Example: redis-queue failures list --task shop.mail --since 2h
    """
    if groups:
        if only:
            raise click.UsageError("--groups counts all failures: leave out the conditions")
        _show_groups(access, limit, as_json=as_json)
        return
    arguments = {"arguments": lambda failure: f"{failure.args} {failure.kwargs}"} if with_body else {}
    show_listing(
        access,
        "failures",
        FailureList(access, only),
        limit,
        partial(_fields, with_body=with_body),
        {
            "id": lambda failure: failure.id,
            "failed": lambda failure: failure.failed_at,
            "attempts": lambda failure: failure.attempts,
            "task": lambda failure: failure.task or None,
            "exception": lambda failure: ": ".join(filter(None, (failure.exception, failure.message))),
            **arguments,
        },
        keep=("id", "failed"),
        below=("task", "exception", "arguments"),
        nothing="no failures",
        as_json=as_json,
    )


@failures.command(cls=StoreCommand)
@click.argument("id")
@options.body
@options.utc
@options.as_json
@with_access
def show(access: Access, *, id: str, with_body: bool, as_json: bool) -> None:
    """Show one failed task, with its traceback."""
    found = access.monitor.failures.get(id)
    if found is None:
        report("found", 0, error=f"no failure: {id!r}", as_json=as_json)
        return
    if as_json:
        show_json({**_fields(found, with_body=with_body), "traceback": found.traceback})
        return
    shown = _fields(found, with_body=with_body)
    show_fields({name: value for name, value in shown.items() if value not in ("", None)})
    for line in found.traceback.splitlines():
        click.echo(harmless(line))


for _verb in ("retry", "delete"):
    failures.add_command(
        rows_command(
            ACTIONS["failures", _verb], id_arguments, conditions("failures"), scope=lambda _access, _values: {}
        )
    )


def _show_groups(access: Access, limit: int, *, as_json: bool) -> None:
    found = access.monitor.failures.groups()
    rows, more = found[:limit], len(found) > limit
    if as_json:
        show_json({"groups": [_group(row) for row in rows], "more": more})
        return
    if not rows:
        show_place(access.catalog, "no failures")
        return
    heads = ("failures", "first", "last", "task", "exception")
    table = [(row.count, row.first_at, row.last_at, row.group.task or None, row.group.exception) for row in rows]
    show_table(heads, table, keep=("first", "last"), below=("task", "exception"))
    show_count(access.catalog, len(rows), more=more)


def _group(row: GroupRow) -> dict[str, Any]:
    counts = {"failures": row.count, "first_at": row.first_at, "last_at": row.last_at, "last_id": row.last_id}
    return {**row.group._asdict(), **counts}


def _fields(failure: Failure, *, with_body: bool) -> dict[str, Any]:
    hidden = {"traceback", "body", "size", *(() if with_body else ("args", "kwargs"))}
    known = {name: value for name, value in asdict(failure).items() if name not in hidden}
    return {**known, "message_bytes": failure.size}
