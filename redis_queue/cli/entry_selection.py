"""Selection of entries: ids, or conditions that must all hold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import click

from redis_queue.cli import options
from redis_queue.cli.confirmation import confirm
from redis_queue.cli.ids import IdArguments, id_arguments
from redis_queue.cli.options import when
from redis_queue.cli.output import harmless
from redis_queue.delay.queue import DelayQueue
from redis_queue.operate.access import Access
from redis_queue.operate.audit import Subject
from redis_queue.operate.entries import Conditions, find_ids
from redis_queue.operate.search_report import SearchReport
from redis_queue.operate.subjects import subjects
from redis_queue.operate.verbs import Verb

_OPTIONS = (
    click.option("--queue", help="Only entries for this Celery queue."),
    click.option("--id-prefix", help="Only ids with this prefix."),
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

    for option in reversed((task, *_OPTIONS)):
        wrapper = option(wrapper)
    return wrapper


@dataclass(frozen=True, slots=True)
class Chosen:
    """Entries that a command changes: *ids*, all, or those that match *conditions*."""

    ids: IdArguments
    everything: bool
    conditions: Conditions

    def find(self, access: Access, queue: DelayQueue) -> list[str]:
        """Return the ids; raises UsageError unless they are given in exactly one way.

        If no entry matches, it prints how many entries it searched, and suggests a task name.
        """
        ways = (self.ids.present, bool(self.conditions), self.everything)
        if sum(ways) != 1:
            raise click.UsageError("give ids, or conditions like --task, or --all")
        if self.ids.present:
            return list(self.ids.ids)
        scan = SearchReport()
        ids = find_ids(access, queue, self.conditions, scan)
        if self.conditions and not ids:
            click.echo(harmless(scan.no_match("entries") + scan.hint(self.conditions.task)), err=True)
        return ids

    def confirm(self, verb: Verb, queue: DelayQueue, ids: list[str], *, yes: bool) -> None:
        """Ask with the count and the first ones, unless single ids were given and *verb* destroys nothing."""
        if ids and (verb.destroys or not self.ids.typed):
            confirm(f"{verb.label} {len(ids):,} entries?", lambda: first_of(queue, ids), len(ids), at="due", yes=yes)


def first_of(queue: DelayQueue, ids: list[str]) -> list[Subject]:
    """Return the first waiting entries among *ids*."""
    return subjects(((queue, id_) for id_ in ids), ("delayed", "in_flight"))


def chosen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ids, ``--ids-file``, ``--all`` and the conditions, and pass them as *chosen*."""

    @functools.wraps(function)
    def wrapper(*args: Any, ids: IdArguments, everything: bool, conditions: Conditions, **kwargs: Any) -> Any:
        return function(*args, chosen=Chosen(ids, everything, conditions), **kwargs)

    wrapper = click.option("--all", "everything", is_flag=True, help="All waiting entries.")(wrapper)
    return id_arguments(_with_conditions(wrapper, options.task))
