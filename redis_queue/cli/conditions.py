"""Conditions of searches, as options: which entries, dead letters, failures or messages are meant."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

import click

from redis_queue.cli import options
from redis_queue.operate.access import Access
from redis_queue.operate.listing import Conditions

Function = Callable[..., Any]


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
