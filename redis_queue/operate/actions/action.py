"""Actions: what a person may do. Each is planned and shown, then done in batches, and written to the audit."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any, Final, Protocol

from redis_queue.basics.options import some_of
from redis_queue.basics.times import with_zone
from redis_queue.errors import InvalidNameError, InvalidValueError, RedisQueueError
from redis_queue.operate.access import Access
from redis_queue.operate.audit import MAX_SUBJECTS, Audit, AuditLine, Subject
from redis_queue.operate.listing import SearchReport

MAX_QUEUE_NAMES: Final = 3
"""Maximum number of queues that a line of the audit names."""

MAX_REASONS: Final = 5
"""Maximum number of reasons of skipped items that a text names."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of an action: a field of its form and an *option* of its command, by default ``--name``.

    *read* returns its value and raises InvalidValueError. If it is required, *missing* is what to tell without it.
    *text* shows the value in a preview, and in the audit; but the audit, which more people read, only names one that
    *is_private*.
    """

    name: str
    help: str
    read: Callable[[str], Any] = str
    text: Callable[[Any], str] = str
    missing: str = ""
    metavar: str = "TEXT"
    option: str = ""
    is_flag: bool = False
    is_positional: bool = False
    is_private: bool = False
    most: int = 300
    """Maximum characters."""
    choices: Sequence[str] = ()
    """All its values, the default first; () for any."""

    def value(self, text: str, zone: tzinfo | None) -> Any:
        """Return the value of *text*, as :attr:`read`; a time without a zone is in *zone*, None for the local one."""
        return self.read(with_zone(text, zone) if self.metavar == "TIME" else text)


def flag(name: str, help_: str, text: str) -> Argument:
    """Return an argument that is a check box, and *text* in the audit."""

    def read(value: str) -> bool:
        if value not in ("0", "1"):
            raise InvalidValueError(f"{name}={value[:20]!r}: must be 0 or 1")
        return value == "1"

    return Argument(name, help_, read, lambda _: text, is_flag=True)


def number(name: str, most: int) -> Callable[[str], int]:
    """Return a reader of a whole number from 1 to *most*."""

    def read(value: str) -> int:
        found = int(value) if value.isascii() and value.isdecimal() and len(value) <= len(str(most)) else 0
        if not 1 <= found <= most:
            raise InvalidValueError(f"{name}={value[:60]!r}: must be a whole number from 1 to {most:,}")
        return found

    return read


@dataclass(frozen=True, slots=True)
class Choice:
    """What a person chose. Items are chosen by *references*, by *ids*, or else by *conditions*."""

    #: Values of the fields in the scope of the target, such as the name of a queue.
    scope: Mapping[str, Any] = field(default_factory=dict)
    #: Values of the arguments of the action.
    arguments: Mapping[str, Any] = field(default_factory=dict)
    #: Rows of a form, each in one version.
    references: Sequence[str] = ()
    ids: Sequence[str] | None = None
    conditions: Any = None
    #: Maximum number of items that the conditions choose; None for all.
    most: int | None = None
    #: Leave out ids of items that do not exist.
    exact: bool = False
    #: Put references to the items as they are now into the plan, up to as many bytes in a form, so that exactly these
    #: are confirmed; 0 for no references.
    room: int = 0
    #: The count that was confirmed; None before.
    confirmed: int | None = None
    #: Leave alone what came later.
    at: datetime | None = None


@dataclass(slots=True)
class Result:
    """The result of one batch of items, or of all batches so far."""

    #: Number of changed items.
    count: int = 0
    #: Number of those that may have been sent before.
    maybe_sent: int = 0
    tried: int = 0
    #: Numbers of items that were not changed, by reason; the other ones were gone.
    skipped: Counter[str] = field(default_factory=Counter)
    #: The changed items, if they are not those of the plan.
    subjects: list[Subject] = field(default_factory=list)
    #: The result in words, without a full stop.
    text: str = ""
    #: The result in numbers, if one is not enough.
    counts: Mapping[str, int] = field(default_factory=dict)
    #: Why the line of the audit could not be written.
    unwritten: str = ""

    def add(self, batch: Result) -> None:
        self.count += batch.count
        self.maybe_sent += batch.maybe_sent
        self.tried += batch.tried
        self.skipped.update(batch.skipped)
        self.subjects += batch.subjects[: MAX_SUBJECTS - len(self.subjects)]
        self.text, self.counts = batch.text or self.text, batch.counts or self.counts

    @property
    def reasons(self) -> list[str]:
        """Why items were skipped, the most frequent reason first."""
        return [f"{number:,} skipped: {reason}" for reason, number in self.skipped.most_common(MAX_REASONS)]

    @property
    def maybe_sent_text(self) -> str:
        """What to tell about items that may have been sent before; "" without any."""
        if not self.maybe_sent:
            return ""
        return f"{self.maybe_sent:,} of them were claimed before and may have been sent: revoke them as well"

    def refused(self, error: BaseException) -> bool:
        """Return whether *error* refused the input before anything was tried."""
        return isinstance(error, (InvalidNameError, InvalidValueError)) and not self.tried

    def left(self, plan: Plan) -> int:
        """Return the number of items of *plan* that were gone."""
        return max(0, plan.count - self.count - self.skipped.total())


@dataclass(frozen=True, slots=True)
class Plan:
    """What an action would do to *count* items; *run* does it, batch by batch."""

    #: Names the action and the items.
    question: str
    count: int
    run: Callable[[], Iterator[Result]]
    #: Queues and arguments, for the audit.
    queues: Sequence[str] = ()
    detail: str = ""
    #: The first items.
    subjects: Sequence[Subject] = ()
    #: The effect.
    text: str = ""
    #: What speaks against it.
    warnings: Sequence[str] = ()
    #: Why there is nothing to do.
    nothing: str = ""
    #: Whether there may be more items that match.
    more: bool = False
    #: References to the items, and what else a form must send again.
    references: Sequence[str] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    #: The given arguments, for the preview.
    facts: Sequence[str] = ()
    #: Labels, and their values before and after.
    changes: Sequence[tuple[str, Any, Any]] = ()
    #: Why items may have been left out.
    gone: str = ""
    #: Number of items that the batches try, if it is not *count*.
    tries: int = 0
    #: What was searched, and the queues that cannot be read.
    report: SearchReport = field(default_factory=SearchReport)


class Target(Protocol):
    """What actions of one kind act on, and how they are planned."""

    @property
    def name(self) -> str:
        """The name in addresses; target and verb name an action."""

    @property
    def at(self) -> str:
        """What the times of its items are, such as "due"; "" if it shows none."""

    @property
    def scope(self) -> Mapping[str, bool]:
        """The fields that name a thing, or the queue of its items, and whether each is required."""

    def plan(self, action: Action, access: Access, choice: Choice) -> Plan:
        """Return what *action* would do. Raises InvalidValueError, InvalidNameError and StoreError."""


@dataclass(frozen=True, slots=True)
class Action:
    """What *verb* does to a *target*: its *label*, its *past* ("cancelled"), and its *arguments*.

    The docstring of *function* is the description. A target that is one thing calls it with ``(access, choice)``, for
    its plan. One whose items are rows calls it with ``(access, items, choice)``, one whose rows are in queues of the
    store with ``(access, queue, ids, choice)``, both for an iterator of results. *destroys*: what it does cannot be
    undone. *takes_all*: it may act on all items of its target. *names_items*: its results have the changed items, so
    that they need not be read before. *phrase* tells the arguments in a question.
    """

    target: Target
    verb: str
    label: str
    past: str
    function: Callable[..., Any]
    arguments: Sequence[Argument] = ()
    destroys: bool = False
    takes_all: bool = True
    names_items: bool = False
    phrase: Callable[[Mapping[str, Any]], str] = lambda _: ""

    def given(self, choice: Choice) -> list[str]:
        """Return the given arguments as people read them in a preview."""
        return [argument.text(value) for argument, value in self._given(choice)]

    def detail(self, choice: Choice) -> str:
        """Return the given arguments for the audit."""
        given = self._given(choice)
        return ", ".join(argument.name if argument.is_private else argument.text(value) for argument, value in given)

    def _given(self, choice: Choice) -> list[tuple[Argument, Any]]:
        given = ((argument, choice.arguments.get(argument.name)) for argument in self.arguments)
        return [(argument, value) for argument, value in given if value not in (None, False)]

    @property
    def help(self) -> str:
        """What the action does, for the command line and the documentation."""
        return inspect.getdoc(self.function) or ""


def perform(  # noqa: PLR0917 - each is another thing
    access: Access, action: Action, plan: Plan, user: str, total: Result, go_on: Callable[[], bool] = lambda: True
) -> None:
    """Do what *plan* says, add each batch to *total*, and go on while *go_on* returns True.

    However it ends, a line in the audit says what was changed by *user*; nothing is written if nothing was changed and
    nothing failed. Raises the errors of the action, and StoreError.
    """
    at, failed = access.inspector.now(), ""
    try:
        for batch in plan.run():
            total.add(batch)
            if not go_on():
                break
    except BaseException as error:
        failed = "" if total.refused(error) else f"{type(error).__name__}: {error}"
        raise
    finally:
        if total.count or total.skipped or failed:
            detail = "; ".join(filter(None, (plan.detail, *total.reasons, failed)))
            subjects = total.subjects or plan.subjects
            queues = some_of(list(dict.fromkeys(plan.queues)), MAX_QUEUE_NAMES)
            line = AuditLine(at, user, action.verb, queues, total.count, detail, subjects)
            # The change is done, so an audit that cannot be written is only told.
            try:
                Audit(access.catalog.client, access.catalog.prefix).record(line)
            except RedisQueueError as error:
                total.unwritten = str(error)
