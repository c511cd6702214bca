"""Rows: items of a listing that a person ticks, names by ids, or searches for, and that an action changes."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final, Generic, TypeVar
from urllib.parse import quote

from redis_queue.basics.options import counted
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Action, Choice, Plan, Result
from redis_queue.operate.audit import Subject
from redis_queue.operate.listing import Selection
from redis_queue.operate.queue_row import Faults

T = TypeVar("T")

INVALID_ROW: Final = "This form has an invalid row: reload the page"


class Rows(ABC, Generic[T]):
    """Items of one kind: how they are chosen, referred to in a form, and shown. *at* names the kind of their times.

    *gone* tells why an action may have left some out. *complete*: that is an error. *place*: where the items are, as a
    question says it, with fields of the scope; "" if it need not.
    """

    name: ClassVar[str]
    noun: ClassVar[str]
    plural: ClassVar[str]
    at: ClassVar[str]
    scope: ClassVar[Mapping[str, bool]] = {}
    gone: ClassVar[str]
    complete: ClassVar[bool] = False
    place: ClassVar[str] = ""

    @abstractmethod
    def find(self, access: Access, choice: Choice) -> Selection[T]:
        """Return the items with the ids of *choice*, or those that match."""

    @abstractmethod
    def read(self, access: Access, choice: Choice) -> Sequence[T]:
        """Return the items with the references of *choice*. Raises InvalidValueError."""

    @abstractmethod
    def current(self, access: Access, choice: Choice, items: Sequence[T]) -> Sequence[T]:
        """Return *items* as they are now."""

    @abstractmethod
    def reference(self, item: T) -> str:
        """Return a reference to one version of *item*, for a form."""

    @abstractmethod
    def subjects(self, choice: Choice, items: Sequence[T]) -> list[Subject]:
        """Return the first of *items*, for preview and audit."""

    def run(
        self,
        action: Action,
        access: Access,
        choice: Choice,
        items: Sequence[T],
        faults: Faults,  # noqa: ARG002
    ) -> Iterator[Result]:
        """Apply *action* to *items*, batch by batch; errors of a queue go to *faults*."""
        found: Iterator[Result] = action.function(access, items, choice)
        return found

    def queues(self, choice: Choice, items: Sequence[T], subjects: Sequence[Subject]) -> Sequence[str]:  # noqa: ARG002
        """Return what the audit names as queues."""
        return [subject.queue for subject in subjects]

    def counted(self, count: int) -> str:
        """Return ``1 entry`` or ``2 entries``."""
        return counted(count, self.noun, self.plural)

    def plan(self, action: Action, access: Access, choice: Choice) -> Plan:
        """Return what *action* would do to the items of *choice*."""
        selection = Selection(self.read(access, choice)) if choice.references else self.find(access, choice)
        return self.planned(action, access, choice, selection)

    def planned(self, action: Action, access: Access, choice: Choice, selection: Selection[T]) -> Plan:
        """Return what *action* would do to the items of *selection*."""
        more, report = selection.more, selection.report
        items = self.current(access, choice, selection.items) if choice.room else selection.items
        references = [self.reference(item) for item in items] if choice.room else []
        sizes = itertools.accumulate(len(quote(reference, safe="")) + len("&row=") for reference in references)
        fitting = sum(1 for size in sizes if size <= choice.room)
        if fitting < len(references):
            items, references, more = items[:fitting], references[:fitting], True
        subjects = self.subjects(choice, items)
        place = self.place.format(**choice.scope)
        # An id of the command line is looked for in each queue that may have it.
        count = len(items) if choice.ids is None else min(len(choice.ids), len(items))
        nothing = f"No match among the first {report.looked:,}; the command line searches all"
        return Plan(
            question=f"{action.label} {self.counted(count)}{place}{action.phrase(choice.arguments)}",
            count=count,
            tries=len(items),
            run=lambda: self.run(action, access, choice, items, report.faults),
            queues=self.queues(choice, items, subjects),
            detail=action.detail(choice),
            subjects=subjects,
            nothing="" if items or not more else nothing,
            more=more,
            references=references,
            gone=self.gone,
            report=report,
        )
