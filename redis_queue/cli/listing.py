"""Listings and single items on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from redis_queue.cli import options
from redis_queue.cli.access import with_access
from redis_queue.cli.output import show_count, show_fields, show_json, show_place, show_table, shown_body
from redis_queue.cli.report import end_with, report
from redis_queue.operate.access import Access
from redis_queue.operate.faults import Faults
from redis_queue.operate.listing import Listing

T = TypeVar("T")

item_command: Final = options.together(
    click.argument("id"), options.name, options.body, options.utc, options.as_json, with_access
)
"""Options of a command that shows one item."""

BODIES: Final = ("body", "raw")


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
