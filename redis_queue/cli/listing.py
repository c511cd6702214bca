"""Listings on the command line: conditions as options, lists, and single items."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

import click

from redis_queue.cli import options
from redis_queue.cli.access import with_access
from redis_queue.cli.output import show_count, show_fields, show_json, show_place, show_table, shown_body
from redis_queue.cli.report import end_with, report
from redis_queue.operate.access import Access
from redis_queue.operate.listing import Conditions, Listing
from redis_queue.operate.queue_row import Faults

Function = Callable[..., Any]

T = TypeVar("T")

BODIES: Final = ("body", "raw")


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

OPTIONS: Final[dict[str, tuple[Callable[[Any], Any], ...]]] = {
    "entries": (
        click.option("--queue", help="Only entries for this Celery queue."),
        _id_prefix,
        _text,
        click.option(
            "--stamp",
            multiple=True,
            callback=_stamps,
            metavar="NAME=VALUE",
            help="Only tasks with this stamp. Several values of one name: any of them; several names: all.",
        ),
        click.option(
            "--due-before",
            type=options.when,
            help="Only entries due before this time: 2030-01-01T00:00Z, or 2h from now.",
        ),
        click.option("--due-after", type=options.when, help="Only entries due at this time or later."),
    ),
    "dead letters": (_id_prefix, click.option("--reason", help="Only reasons that contain this text.")),
    "messages": (_id_prefix, _text),
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


item_command: Final = options.together(
    click.argument("id"), options.name, options.body, options.utc, options.as_json, with_access
)
"""Options of a command that shows one item."""


def show_listing(  # noqa: PLR0917 - each is another part of the output
    access: Access,
    name: str,
    listing: Listing[T, Any],
    limit: int,
    fields: Callable[[T], Mapping[str, Any]],
    columns: Mapping[str, Callable[[T], Any]],
    *,
    keep: Sequence[str],
    below: Sequence[str],
    nothing: str,
    as_json: bool,
    faults: Faults | None = None,
) -> None:
    """Print the first *limit* items of *listing*: their *fields* as JSON under *name*, or a table of *columns*.

    Without an item it says how many were searched, or *nothing* if there was no condition. Ends with code 1 if there
    are *faults*.
    """
    found, more = listing.first(limit)
    faults = faults or Faults()
    if as_json:
        end_with(faults, {name: [fields(item) for item in found], "more": more}, as_json=True)
        return
    if found:
        rows = [[cell(item) for cell in columns.values()] for item in found]
        show_table(list(columns), rows, keep=keep, below=below)
        show_count(access.catalog, len(found), more=more)
    else:
        text, hint = listing.nothing(nothing)
        show_place(access.catalog, text, hint)
    end_with(faults)


def show_one(
    noun: str,
    id_: str,
    found: Iterator[tuple[str, T]],
    fields: Callable[[T], dict[str, Any]],
    faults: Faults,
    *,
    as_json: bool,
) -> None:
    """Print the fields of the first item in *found* (id, item) with this id; exits with code 1 if there is none.

    The error then includes *faults*.
    """
    item = next((item for id_of, item in found if id_of == id_), None)
    if item is None:
        report("found", 0, error="; ".join(filter(None, (f"no {noun}: {id_!r}", faults.text()))), as_json=as_json)
        return
    shown = fields(item)
    if as_json:
        show_json(shown)
    else:
        show_fields({name: shown_body(value) if name in BODIES else value for name, value in shown.items()})
