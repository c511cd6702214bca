"""Show one item by its id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from redis_queue.catalog import AnyQueue
from redis_queue.cli import options
from redis_queue.cli.access import with_access
from redis_queue.cli.output import show_fields, show_json, shown_body
from redis_queue.cli.report import report
from redis_queue.model import DeadLetter, Quarantined
from redis_queue.operate.faults import Faults
from redis_queue.operate.pages import InQueue

item_command: Final = options.together(
    click.argument("id"), options.name, options.body, options.utc, options.as_json, with_access
)
"""Options of a command that shows one item."""

BODIES: Final = ("body", "raw")


def show_one(
    noun: str,
    id_: str,
    found: Iterator[InQueue[Any]],
    fields: Callable[[AnyQueue, Any], dict[str, Any]],
    faults: Faults,
    *,
    as_json: bool,
) -> None:
    """Print the fields of the first item in *found* with this id; exits with code 1 if there is none.

    The error then includes *faults*.
    """
    pair: tuple[AnyQueue, DeadLetter | Quarantined] | None = next((pair for pair in found if pair[1].id == id_), None)
    if pair is None:
        report("found", 0, error="; ".join(filter(None, (f"no {noun}: {id_!r}", faults.text()))), as_json=as_json)
        return
    shown = fields(*pair)
    if as_json:
        show_json(shown)
    else:
        show_fields({name: shown_body(value) if name in BODIES else value for name, value in shown.items()})
