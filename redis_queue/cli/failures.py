"""``redis-queue failures``: the tasks that failed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.actions import id_arguments, rows_command
from redis_queue.cli.conditions import conditions
from redis_queue.cli.output import harmless, show_count, show_fields, show_json, show_place, show_table
from redis_queue.cli.report import report
from redis_queue.monitor.model import Failure, GroupRow
from redis_queue.operate.access import Access
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.failures import (
    FailureFilter,
)
from redis_queue.operate.pages import first
from redis_queue.operate.search_report import SearchReport


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
@conditions(FailureFilter)
def list_(access: Access, *, only: FailureFilter, groups: bool, limit: int, with_body: bool, as_json: bool) -> None:
    """List failed tasks, the last one first.

    Example: redis-queue failures list --task shop.mail --since 2h
    """
    if groups:
        if only:
            raise click.UsageError("--groups counts all failures: leave out the conditions")
        _show_groups(access, limit, as_json=as_json)
        return
    scan = SearchReport()
    found, more = first(only.all(access.monitor.failures, scan), limit)
    if as_json:
        show_json({"failures": [_fields(failure, with_body=with_body) for failure in found], "more": more})
        return
    if not found:
        nothing = scan.no_match("failures") if only else "no failures"
        show_place(access.catalog, nothing, scan.hint(only.task))
        return
    heads = ("id", "failed", "attempts", "task", "exception", *(("arguments",) if with_body else ()))
    rows = [_row(failure, with_body=with_body) for failure in found]
    show_table(heads, rows, keep=("id", "failed"), below=("task", "exception", "arguments"))
    show_count(access.catalog, len(found), more=more)


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
            ACTIONS["failures", _verb], id_arguments, conditions(FailureFilter), scope=lambda _access, _values: {}
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


def _row(failure: Failure, *, with_body: bool) -> list[Any]:
    text = f"{failure.exception}: {failure.message}" if failure.message else failure.exception
    row = [failure.id, failure.failed_at, failure.attempts, failure.task or None, text]
    return [*row, f"{failure.args} {failure.kwargs}"] if with_body else row


def _fields(failure: Failure, *, with_body: bool) -> dict[str, Any]:
    hidden = {"traceback", "body", "size", *(() if with_body else ("args", "kwargs"))}
    known = {name: value for name, value in asdict(failure).items() if name not in hidden}
    return {**known, "message_bytes": failure.size}
