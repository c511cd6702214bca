"""Selection of messages or entries that a command changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import click

from redis_queue.cli.audit import Record
from redis_queue.cli.confirmation import confirm, preview
from redis_queue.cli.ids import IdArguments
from redis_queue.cli.output import harmless
from redis_queue.model import State
from redis_queue.operate.access import Access
from redis_queue.operate.audit import Subject
from redis_queue.operate.dead_letters import Filter, Pair
from redis_queue.operate.entries import Conditions
from redis_queue.operate.faults import Faults
from redis_queue.operate.search_report import SearchReport
from redis_queue.operate.subjects import subjects
from redis_queue.operate.verbs import Verb

C = TypeVar("C", Conditions, Filter)


@dataclass(frozen=True)
class Selection(Generic[C]):
    """Either *ids*, or all, or those that match *conditions*, which must all hold."""

    noun: ClassVar[str]
    plural: ClassVar[str]
    states: ClassVar[Sequence[State]]
    at: ClassVar[str]
    """Kind of their times: "due" or "died"."""

    ids: IdArguments
    conditions: C
    everything: bool = False

    def check(self, usage: str) -> None:
        """Raise UsageError with *usage* unless they are given in exactly one way."""
        if sum((self.ids.present, bool(self.conditions), self.everything)) != 1:
            raise click.UsageError(usage)

    def explain(self, scan: SearchReport) -> None:
        """Print how many were searched if none matches, and suggest a task name."""
        if self.conditions:
            click.echo(harmless(scan.no_match(self.plural) + scan.hint(self.conditions.task)), err=True)

    def preview(self, verb: Verb, count: int, pairs: Sequence[Pair], *, error: str = "", as_json: bool) -> None:
        """Print *count* and the first of *pairs*."""
        preview(verb.past.replace(" ", "_"), count, self._subjects(pairs), at=self.at, as_json=as_json, error=error)

    def confirm(self, verb: Verb, pairs: Sequence[Pair], *, yes: bool) -> None:
        """Ask with the count and the first ones, unless single ids were given and *verb* destroys nothing."""
        if pairs and (verb.destroys or not self.ids.typed):
            count = len(self.ids.ids) or len(pairs)
            question = f"{verb.label} {count:,} {self.plural}?"
            confirm(question, lambda: self._subjects(pairs), count, at=self.at, yes=yes)

    def record(self, access: Access, verb: Verb, pairs: Sequence[Pair], detail: str = "") -> Record:
        """Return the line of the audit for *verb* on *pairs*."""
        first = self._subjects(pairs)
        # Given ids are paired with each queue that may have them.
        queues = [subject.queue for subject in first] if self.ids.present else [queue.name for queue, _ in pairs]
        return Record(access, verb.name, queues, first, detail)

    def problem(self, done: int, faults: Faults) -> str:
        """Return problems to report although no call failed."""
        return faults.text() or ("" if done else self.ids.missing(self.noun))

    def _subjects(self, pairs: Sequence[Pair]) -> list[Subject]:
        return subjects(pairs, self.states)
