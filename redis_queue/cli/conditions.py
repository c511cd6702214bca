"""Which delayed tasks are meant: ids, or conditions that must all hold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import click

from redis_queue.celery.conditions import Conditions
from redis_queue.cli import options
from redis_queue.cli.acting import agree
from redis_queue.cli.ids import Named, named
from redis_queue.cli.options import when
from redis_queue.cli.output import harmless
from redis_queue.delay.queue import DelayQueue
from redis_queue.operate.access import Access
from redis_queue.operate.audit import Subject
from redis_queue.operate.entries import find_ids
from redis_queue.operate.scan import Scan
from redis_queue.operate.subjects import subjects

_OPTIONS = (
    click.option("--queue", help="Only what goes into this Celery queue."),
    click.option("--id-prefix", help="Only ids that begin like this."),
    click.option("--due-before", type=when, help="Only what is due before: 2030-01-01T00:00Z, or 2h from now."),
    click.option("--due-after", type=when, help="Only what is due then or later."),
)


def conditions(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a read-only command, and pass them as *conditions*."""
    return _with_conditions(function, options.task_part)


def _with_conditions(function: Callable[..., Any], task: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        values = {item.name: kwargs.pop(item.name, None) for item in fields(Conditions)}
        return function(*args, conditions=Conditions(**values), **kwargs)

    for option in reversed((task, *_OPTIONS)):
        wrapper = option(wrapper)
    return wrapper


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a command that changes entries was asked to change."""

    named: Named
    everything: bool
    conditions: Conditions

    def find(self, access: Access, queue: DelayQueue) -> list[str]:
        """Return the ids; exits with a message unless they are given in exactly one way.

        If none matches, it reports how many entries it searched, and suggests a task name.
        """
        ways = (self.named.given, bool(self.conditions), self.everything)
        if sum(ways) != 1:
            raise click.UsageError("give ids, or conditions like --task, or --all")
        if self.named.given:
            return list(self.named.ids)
        scan = Scan()
        ids = find_ids(access, queue, self.conditions, scan)
        if self.conditions and not ids:
            click.echo(harmless(scan.no_match("entries") + scan.hint(self.conditions.task)), err=True)
        return ids

    def confirm(self, verb: str, queue: DelayQueue, ids: list[str], *, yes: bool, always: bool = False) -> None:
        """Ask with the count and the first ones, unless single ids were given and nothing would be destroyed."""
        if ids and (always or not self.named.typed):
            agree(f"{verb} {len(ids):,} entries?", lambda: first_of(queue, ids), len(ids), at="due", yes=yes)


def first_of(queue: DelayQueue, ids: list[str]) -> list[Subject]:
    """Return the first waiting entries among *ids*."""
    return subjects(((queue, id_) for id_ in ids), ("delayed", "in_flight"))


def chosen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ids, ``--ids-file``, ``--all`` and the conditions, and pass them as *chosen*."""

    @functools.wraps(function)
    def wrapper(*args: Any, named: Named, everything: bool, conditions: Conditions, **kwargs: Any) -> Any:
        return function(*args, chosen=Chosen(named, everything, conditions), **kwargs)

    wrapper = click.option("--all", "everything", is_flag=True, help="All that wait.")(wrapper)
    return named(_with_conditions(wrapper, options.task))
