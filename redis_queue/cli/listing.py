"""Listings on the command line: conditions as options, lists, and single items."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

import click

from redis_queue.basics.options import Conditions
from redis_queue.cli import options
from redis_queue.cli.output import (
    end_with,
    report,
    show_count,
    show_fields,
    show_json,
    show_location,
    show_table,
    shown_body,
    wants_json,
)
from redis_queue.operate.access import Access
from redis_queue.operate.items import Messages, message_row
from redis_queue.operate.listing import Listing

Function = Callable[..., Any]

T = TypeVar("T")

Row = Mapping[str, Any]

Column = str | Callable[[Row], Any]
"""A field of a row, or a function that returns the cell."""

BODIES: Final = ("body", "raw", "payload")
"""Fields that are shown as text."""


def _stamps(_: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, list[str]] | None:
    found: dict[str, list[str]] = {}
    for value in values:
        name, equals, stamp = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{value!r}: must be NAME=VALUE", param=parameter)
        found.setdefault(name, []).append(stamp)
    return found or None


_id_prefix: Final = click.option("--id-prefix", help="Only ids with this prefix.")
_text: Final = click.option("--text", help="Only tasks whose arguments contain this text.")

_stamp: Final = click.option(
    "--stamp",
    multiple=True,
    callback=_stamps,
    metavar="NAME=VALUE",
    help="Only tasks with this stamp. Several values of one name: any of them; several names: all.",
)

OPTIONS: Final[dict[str, tuple[Callable[[Any], Any], ...]]] = {
    "entries": (
        click.option("--queue", help="Only entries for this Celery queue."),
        _id_prefix,
        _text,
        _stamp,
        click.option(
            "--due-before",
            type=options.when,
            help="Only entries due before this time: 2030-01-01T00:00Z, or 2h from now.",
        ),
        click.option("--due-after", type=options.when, help="Only entries due at this time or later."),
    ),
    "dead letters": (_id_prefix, click.option("--reason", help="Only reasons that contain this text.")),
    "messages": (_id_prefix, _text),
    "tasks": (
        click.option("--text", help="Only if the arguments, the error or the id contain this text."),
        click.option("--queue", help="Only tasks of this Celery queue."),
        click.option("--worker", help="Only tasks of this worker."),
        click.option("--release", help="Only tasks that ended in this release of the app."),
        _id_prefix,
        _stamp,
        click.option(
            "--since", "due_after", type=options.when, help="Only later tasks: 2h ago, or since 2030-01-01T00:00Z."
        ),
        click.option("--until", "due_before", type=options.when, help="Only earlier tasks, as with --since."),
    ),
    "failures": (
        click.option("--exception", help="Only this exception: ValueError, or with its module."),
        click.option("--text", help="Only if the exception or the arguments contain this text."),
        click.option("--worker", help="Only failures on this worker."),
        click.option(
            "--since", "due_after", type=options.when, help="Only later failures: 2h ago, or since 2030-01-01T00:00Z."
        ),
        click.option("--until", "due_before", type=options.when, help="Only earlier failures, as with --since."),
    ),
}
"""The options of the conditions of each listing, but for the name of a task."""


def conditions(noun: str, task: Callable[[Any], Any] = options.task) -> Callable[[Function], Function]:
    """Return a decorator that adds the options for the listing of *noun*, with *task*, and passes them as *only*."""

    def add(function: Function) -> Function:
        @functools.wraps(function)
        def wrapper(access: Access, **values: Any) -> Any:
            only = Conditions(**{item.name: values.pop(item.name, None) for item in fields(Conditions)})
            return function(access, only=only, **values)

        return options.together(task, *OPTIONS[noun])(wrapper)

    return add


item_command: Final = options.together(click.argument("id"), options.name, options.body, options.output)
"""Options of a command that shows one item."""


def show_rows(
    access: Access,
    document: Mapping[str, Any],
    columns: Mapping[str, Column],
    *,
    keep: Sequence[str] = (),
    below: Sequence[str] = (),
    nothing: str = "",
    hint: str = "",
    more: bool | None = None,
    error: str = "",
) -> None:
    """Print *document* as JSON, or its only list as a table with *columns*; *keep* and *below* as in ``show_table``.

    Without rows it says *nothing* and a *hint*, if given. *more*: there are other rows; None: rows are not counted.
    *document* may tell it. Ends with code 1 if there is an *error*.
    """
    if not wants_json():
        rows = next(value for value in document.values() if isinstance(value, list))
        more = document.get("more", more)
        if nothing and not rows:
            show_location(access.catalog, nothing, hint)
        else:
            cells = [[_cell(row, column) for column in columns.values()] for row in rows]
            show_table(list(columns), cells, keep=keep, below=below)
            if more is None:
                show_location(access.catalog)
            else:
                show_count(access.catalog, len(rows), more=more)
    end_with(error, document)


def _cell(row: Row, column: Column) -> Any:
    if not isinstance(column, str):
        return column(row)
    return shown_body(row[column]) if column in BODIES else row[column]


def show_listing(
    access: Access,
    name: str,
    listing: Listing[T, Any],
    fields: Callable[[T], Row],
    columns: Mapping[str, Column],
    *,
    limit: int,
    nothing: str,
    **options: Any,
) -> None:
    """Print the *fields* of the first *limit* items of *listing*, as :func:`show_rows` does.

    Without an item it says how many were searched, or *nothing* if there was no condition. Ends with code 1 if a queue
    cannot be read.
    """
    found, more = listing.first(limit)
    text, hint = listing.nothing(nothing)
    document = {name: [fields(item) for item in found], "more": more}
    error = listing.report.faults.text()
    show_rows(access, document, columns, nothing=text, hint=hint, error=error, **options)


def show_messages(access: Access, messages: Messages, *, limit: int, with_body: bool, heads: Sequence[str]) -> None:
    """Print the first *limit* of *messages*, with these *heads* besides those of all messages."""
    columns = ["id", "since", "bytes", "priority", *heads, "task", *(["args", "kwargs"] if with_body else [])]
    show_listing(
        access,
        "messages",
        messages,
        lambda message: message_row(message, with_body=with_body, fields=heads),
        {head: head for head in columns},
        limit=limit,
        keep=columns[:2],
        below=columns[5:],
        nothing="no messages",
    )


def show_item(fields: Row | None, *missing: str) -> None:
    """Print the *fields* of an item; without one, report what is *missing* and exit with code 1."""
    if fields is None:
        report("found", 0, error="; ".join(filter(None, missing)))
    elif wants_json():
        show_json(fields)
    else:
        show_fields({name: shown_body(value) if name in BODIES else value for name, value in fields.items()})
