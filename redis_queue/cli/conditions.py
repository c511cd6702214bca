"""Which delayed tasks are meant: ids, or conditions that must all hold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import click

from redis_queue.cli.acting import agree
from redis_queue.cli.ids import Named, named
from redis_queue.cli.options import when
from redis_queue.console.access import Access
from redis_queue.console.waiting import Conditions
from redis_queue.delay import DelayQueue

_OPTIONS = (
    click.option("--task", help="Only calls of the task with this name."),
    click.option("--queue", help="Only what goes into this Celery queue."),
    click.option("--id-prefix", help="Only ids that begin like this."),
    click.option("--due-before", type=when, help="Only what is due before: 2030-01-01T00:00Z, or 2h from now."),
    click.option("--due-after", type=when, help="Only what is due then or later."),
)


def conditions(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options and pass them as *conditions*."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        values = {item.name: kwargs.pop(item.name) for item in fields(Conditions)}
        return function(*args, conditions=Conditions(**values), **kwargs)

    for option in reversed(_OPTIONS):
        wrapper = option(wrapper)
    return wrapper


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a command that changes entries was asked to change."""

    named: Named
    everything: bool
    conditions: Conditions

    def find(self, access: Access, queue: DelayQueue) -> list[str]:
        """Return the ids; ends with a message where they are not said in exactly one way."""
        ways = (self.named.given, bool(self.conditions), self.everything)
        if sum(ways) != 1:
            raise click.UsageError("give ids, or conditions like --task, or --all")
        return list(self.named.ids) if self.named.given else self.conditions.ids(access, queue)

    def confirm(self, verb: str, ids: list[str], *, yes: bool, always: bool = False) -> None:
        """Ask with the count, unless single entries were typed and nothing would be destroyed."""
        if ids and (always or not self.named.typed):
            agree(f"{verb} {len(ids):,} entries?", yes=yes)


def chosen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ids, ``--ids-file``, ``--all`` and the conditions, and pass them as *chosen*."""

    @functools.wraps(function)
    def wrapper(*args: Any, named: Named, everything: bool, conditions: Conditions, **kwargs: Any) -> Any:
        return function(*args, chosen=Chosen(named, everything, conditions), **kwargs)

    wrapper = click.option("--all", "everything", is_flag=True, help="All that wait.")(wrapper)
    return named(conditions(wrapper))
