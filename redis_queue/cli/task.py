"""``redis-queue tasks`` and ``task``: find tasks, and the life of one."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import click

from redis_queue.basics.options import Conditions
from redis_queue.basics.times import span_text
from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access
from redis_queue.cli.actions import id_arguments, rows_command
from redis_queue.cli.listing import Column, conditions, show_rows
from redis_queue.cli.output import harmless, report, show_fields, show_json, show_table, wants_json
from redis_queue.operate.access import Access
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.actions.tasks import STATES as STOPPED
from redis_queue.operate.canvas import Canvas, canvas
from redis_queue.operate.task_life import TaskLife, phases, task_life
from redis_queue.operate.task_rows import TaskRow
from redis_queue.operate.tasks import STATES, TaskSearch

INDENT: Final = "  "

MAX_FAILED: Final = 3
"""Maximum number of failed tasks that are told first."""


COLUMNS: Final[dict[str, Column]] = {
    "state": "state",
    "id": "id",
    "at": "at",
    "took": lambda row: None if row["seconds"] is None else span_text(row["seconds"]),
    "task": lambda row: row["task"] or None,
    "queue": "queue",
    "worker": lambda row: row["worker"] or None,
    "error": lambda row: row["error"] or None,
}


@click.command(cls=StoreCommand)
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    metavar="STATE",
    help=f"Only tasks in this state: {', '.join(STATES)}. Can be repeated.",
)
@options.limit()
@options.body
@options.output
@conditions("tasks", options.task_part)
def tasks(access: Access, *, only: Conditions, states: tuple[str, ...], limit: int, with_body: bool) -> None:
    """List tasks wherever they are: running, failed, dead, waiting, delayed, and runs that have ended.

    It looks at up to 100,000 tasks of each place, and tells how far it looked.

    Example: redis-queue tasks --text ORD-55555
    """
    search = TaskSearch(access, only, states)
    rows, more, looks = search.first(limit)
    nothing, hint = search.nothing("no task waits or runs, and no run is kept")
    places = {look.place: {"looked": look.looked, "total": look.total, "note": look.text} for look in looks}
    show_rows(
        access,
        {"tasks": [_row(row, with_body=with_body) for row in rows], "more": more, "places": places},
        {**COLUMNS, **({"arguments": lambda row: f"{row['args']} {row['kwargs']}"} if with_body else {})},
        keep=("id", "at"),
        below=("task", "queue", "worker", "error", "arguments"),
        nothing=nothing,
        hint=hint,
    )
    for look in looks if not wants_json() else ():
        if look.text and (search.searches or look.note):
            click.echo(harmless(look.text))


_state: Final = click.option("--state", type=click.Choice(STOPPED), help="Only tasks in this state.")

stop: Final = rows_command(ACTIONS["tasks", "stop"], id_arguments, conditions("tasks"), _state)


def _row(row: TaskRow, *, with_body: bool) -> dict[str, Any]:
    hidden = {"is_task", "stamps", "reference", *(() if with_body else ("args", "kwargs"))}
    return {name: value for name, value in dataclasses.asdict(row).items() if name not in hidden}


@click.command(cls=StoreCommand)
@click.argument("id")
@options.body
@options.utc
@options.as_json
@with_access
def task(access: Access, *, id: str, with_body: bool) -> None:
    """Show what is known of one task: where it is, what happened to it, what comes next, and the tasks around it.

    If a task before or after it failed, it begins with that: any id of a chain leads to the step at which it stopped.

    Exits with code 1 if no source knows the task. With a Celery app, it also reads the result backend and Celery's
    queues, if they are Redis.

    Example: redis-queue task order-42
    """
    life = task_life(access, id)
    if not life.is_known:
        searched = "; ".join(f"{source.name}: {source.note}" for source in life.sources)
        report("found", 0, error=f"no task {id!r}: {searched}")
        return
    tree = canvas(access, life)
    fields = _fields(life, with_body=with_body)
    if wants_json():
        show_json(_document(life, tree, fields))
        return
    for node in tree.failed[:MAX_FAILED] if tree is not None else ():
        text = f"the {node.stopped} stopped at step" if node.stopped else "failed:"
        click.echo(harmless(f"{text} {node.task or 'task'} {node.id}{': ' if node.error else ''}{node.error}"))
    show_fields({name: value for name, value in fields.items() if value != ""})
    click.echo()
    show_table(
        ("time", "after", "event", "detail"),
        [(event.at, _span(event.after), event.what, event.detail) for event in life.events],
        keep=("time",),
        below=("detail",),
    )
    failed = life.state == "failed"
    # Celery has called the errbacks of a task that failed.
    if steps := [(step.link, step.task, step.id) for step in life.next or () if not failed or step.link != "errback"]:
        click.echo()
        show_table(("not sent" if failed else "comes next", "task", "id"), steps, keep=("id",))
    if tree is not None:
        click.echo()
        _show_tree(tree)
    click.echo()
    show_table(("nothing in", "because"), [(source.name, source.note) for source in life.sources if not source.known])


def _fields(life: TaskLife, *, with_body: bool) -> dict[str, Any]:
    root, parent, group = life.lineage
    known = {
        "id": life.id,
        "task": life.task,
        "state": life.state,
        "error": life.error,
        "queue": life.queue,
        "worker": life.worker,
        "root": root,
        "parent": parent,
        "group": group,
        "times": ", ".join(phase.text for phase in phases(life)),
    }
    if not with_body:
        return known
    args, kwargs = life.arguments
    return {**known, "args": args, "kwargs": kwargs, "result": "" if life.result is None else life.result.value}


def _document(life: TaskLife, tree: Canvas | None, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: value or None for name, value in fields.items() if name != "times"},
        "phases": [dataclasses.asdict(phase) for phase in phases(life)],
        "next": None if life.next is None else [dataclasses.asdict(step) for step in life.next],
        "failed": [] if tree is None else [dataclasses.asdict(node) for node in tree.failed],
        "events": [dataclasses.asdict(event) for event in life.events],
        "sources": [dataclasses.asdict(source) for source in life.sources],
        "canvas": None if tree is None else dataclasses.asdict(tree),
    }


def _span(seconds: float | None) -> str:
    return "" if seconds is None else f"+{span_text(seconds, parts=1)}"


def _show_tree(tree: Canvas) -> None:
    for node in tree.nodes:
        mark = "> " if node.is_current else "- "
        line = f"{INDENT * node.depth}{mark}{node.task or 'task'} {node.id}: {node.state}"
        click.echo(harmless(line if not node.group else f"{line}, group {node.group}"))
    if tree.more:
        click.echo("there are more tasks")
