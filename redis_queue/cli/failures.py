"""``redis-queue failures``: the tasks that failed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import click

from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.audit import Record
from redis_queue.cli.batches import run_batches
from redis_queue.cli.confirmation import confirm, preview
from redis_queue.cli.ids import IdArguments, id_arguments
from redis_queue.cli.output import harmless, show_count, show_fields, show_json, show_place, show_table
from redis_queue.cli.report import report
from redis_queue.errors import InvalidValueError
from redis_queue.monitor.model import Failure, GroupRow
from redis_queue.operate.access import Access
from redis_queue.operate.failures import (
    PLACE,
    Changes,
    FailureFilter,
    Retried,
    is_dispatched,
    point,
    subjects_of,
)
from redis_queue.operate.failures import (
    delete as delete_failures,
)
from redis_queue.operate.failures import (
    retry as retry_failures,
)
from redis_queue.operate.pages import first
from redis_queue.operate.search_report import SearchReport
from redis_queue.operate.verbs import Done
from redis_queue.store.chunks import MAX_RATE, MIN_RATE

MOST_REASONS = 5
"""Most reasons of skipped failures that are printed."""


def _conditions(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for conditions, and pass them as *only*; the function gets the Access first."""

    @functools.wraps(function)
    def wrapper(access: Access, *args: Any, **kwargs: Any) -> Any:
        values = {item.name: kwargs.pop(item.name, None) for item in fields(FailureFilter)}
        times = {name: point(access, values[name]) for name in ("since", "until")}
        return function(access, *args, only=FailureFilter(**{**values, **times}), **kwargs)

    return options.together(
        click.option("--task", help="Only failures of the task with this full name."),
        click.option("--exception", help="Only this exception: ValueError, or with its module."),
        click.option("--text", help="Only if the exception or the arguments contain this text."),
        click.option("--worker", help="Only failures on this worker."),
        click.option("--since", type=options.when, help="Only later failures: 2h ago, or since 2030-01-01T00:00Z."),
        click.option("--until", type=options.when, help="Only earlier failures, as with --since."),
    )(wrapper)


@dataclass(frozen=True)
class _Chosen:
    """Failures that a command changes: *ids*, those that match *only*, or all."""

    access: Access
    ids: IdArguments
    only: FailureFilter
    everything: bool

    def find(self) -> Sequence[Failure]:
        """Return the failures. Raises UsageError unless they are given in exactly one way."""
        if sum((self.ids.present, bool(self.only), self.everything)) != 1:
            raise click.UsageError("give ids, or conditions like --task, or --all")
        store = self.access.monitor.failures
        if self.ids.present:
            return store.full(self.ids.ids)
        scan = SearchReport()
        found = list(self.only.all(store, scan))
        if not found and self.only:
            click.echo(harmless(scan.no_match("failures") + scan.hint(self.only.task)), err=True)
        return found

    def problem(self, done: int) -> str:
        """Return the error if none of the ids is that of a failure."""
        return "" if done else self.ids.missing("failure")


_change = options.together(id_arguments, click.option("--all", "everything", is_flag=True, help="All failures."))
_finish = options.together(options.utc, options.dry_run, options.yes, options.as_json, with_access, _conditions)


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
@_conditions
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


@failures.command(cls=StoreCommand)
@_change
@click.option("--args", "new_args", help="Other arguments for all of them: a JSON array.")
@click.option("--kwargs", "new_kwargs", help="Other keyword arguments for all of them: a JSON object.")
@click.option(
    "--rate", type=options.Number(MIN_RATE, MAX_RATE), help="At most this many per second.  [default: all at once]"
)
@_finish
def retry(
    access: Access,
    *,
    ids: IdArguments,
    everything: bool,
    only: FailureFilter,
    new_args: str | None,
    new_kwargs: str | None,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Send failed tasks again, under the same ids, with their retries counted from zero.

    Their messages wait in the DelayQueue, and a dispatcher sends them: with --rate one after the other, and the command
    does not wait.

    Example: redis-queue failures retry --exception Timeout --rate 5
    """
    try:
        changes = Changes.read(new_args, new_kwargs)
    except InvalidValueError as error:
        raise click.BadParameter(str(error)) from None
    chosen = _Chosen(access, ids, only, everything)
    found = chosen.find()
    if dry_run:
        # The others have no message.
        found = [failure for failure in found if failure.size]
        preview("retried", len(found), subjects_of(found), at="failed", as_json=as_json)
        return
    if found and not ids.typed:
        confirm(f"Retry {len(found):,} failures?", lambda: subjects_of(found), len(found), at="failed", yes=yes)
    reasons: dict[str, int] = {}
    batches = _counted(retry_failures(access, found, changes, rate=rate), reasons)
    if found and not is_dispatched(access):
        click.echo("no dispatcher runs: they wait until a worker or redis-queue dispatch does", err=True)
    given = {"args": new_args, "kwargs": new_kwargs, "rate": rate}
    detail = ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)
    record = Record(access, "retry", [PLACE], subjects_of(found), detail)

    def problem(done: int) -> str:
        return _why(reasons) or chosen.problem(done)

    run_batches("retried", len(found), batches, record, as_json=as_json, problem=problem)


@failures.command(cls=StoreCommand)
@_change
@_finish
def delete(
    access: Access, *, ids: IdArguments, everything: bool, only: FailureFilter, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete failed tasks. Those that fail again after the command began stay.

    Example: redis-queue failures delete --task shop.mail --dry-run
    """
    chosen = _Chosen(access, ids, only, everything)
    found = chosen.find()
    if dry_run:
        preview("deleted", len(found), subjects_of(found), at="failed", as_json=as_json)
        return
    if found:
        confirm(f"Delete {len(found):,} failures?", lambda: subjects_of(found), len(found), at="failed", yes=yes)
    batches = (Done(len(deleted), tried=len(deleted)) for deleted in delete_failures(access, found))
    record = Record(access, "delete", [PLACE], subjects_of(found))
    run_batches("deleted", len(found), batches, record, as_json=as_json, problem=chosen.problem)


def _counted(batches: Iterator[Retried], reasons: dict[str, int]) -> Iterator[Done]:
    for batch in batches:
        for _, reason in batch.skipped:
            reasons[reason] = reasons.get(reason, 0) + 1
        yield Done(len(batch.stored), tried=batch.tried)


def _why(reasons: dict[str, int]) -> str:
    named = [f"{number:,} skipped: {reason}" for reason, number in list(reasons.items())[:MOST_REASONS]]
    return "; ".join(named)


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
