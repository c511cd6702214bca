"""Selection of entries: ids, or conditions that must all hold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click

from redis_queue.cli import options
from redis_queue.cli.ids import IdArguments, id_arguments
from redis_queue.cli.options import when
from redis_queue.cli.selection import Selection
from redis_queue.delay.queue import DelayQueue
from redis_queue.operate.access import Access
from redis_queue.operate.entries import Conditions, find_ids
from redis_queue.operate.search_report import SearchReport


def _stamps(_: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, list[str]] | None:
    found: dict[str, list[str]] = {}
    for value in values:
        name, equals, stamp = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{value!r}: must be NAME=VALUE", param=parameter)
        found.setdefault(name, []).append(stamp)
    return found or None


_OPTIONS = (
    click.option("--queue", help="Only entries for this Celery queue."),
    click.option("--id-prefix", help="Only ids with this prefix."),
    click.option("--text", help="Only tasks whose arguments contain this text."),
    click.option(
        "--stamp",
        multiple=True,
        callback=_stamps,
        metavar="NAME=VALUE",
        help="Only tasks with this stamp. Several values of one name: any of them; several names: all.",
    ),
    click.option(
        "--due-before", type=when, help="Only entries due before this time: 2030-01-01T00:00Z, or 2h from now."
    ),
    click.option("--due-after", type=when, help="Only entries due at this time or later."),
)


def conditions(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a read-only command, and pass them as *conditions*."""
    return _with_conditions(function, options.task_part)


def _with_conditions(function: Callable[..., Any], task: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        values = {item.name: kwargs.pop(item.name, None) for item in fields(Conditions)}
        return function(*args, conditions=Conditions(**values), **kwargs)

    return options.together(task, *_OPTIONS)(wrapper)


class Entries(Selection[Conditions]):
    """Waiting entries that a command changes."""

    noun, plural, at = "waiting entry", "entries", "due"
    states = ("delayed", "in_flight")

    def find(self, access: Access, queue: DelayQueue) -> list[str]:
        """Return the ids."""
        self.check("give ids, or conditions like --task, or --all")
        if self.ids.present:
            return list(self.ids.ids)
        scan = SearchReport()
        ids = find_ids(access, queue, self.conditions, scan)
        if not ids:
            self.explain(scan)
        return ids


def selection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ids, ``--ids-file``, ``--all`` and the conditions, and pass them as *chosen*."""

    @functools.wraps(function)
    def wrapper(*args: Any, ids: IdArguments, everything: bool, conditions: Conditions, **kwargs: Any) -> Any:
        return function(*args, chosen=Entries(ids, conditions, everything), **kwargs)

    wrapper = click.option("--all", "everything", is_flag=True, help="All waiting entries.")(wrapper)
    return id_arguments(_with_conditions(wrapper, options.task))
