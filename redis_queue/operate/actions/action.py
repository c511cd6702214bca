"""Actions: what a person may do. Each is planned and shown, then done in batches, and written to the audit."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol

from redis_queue.basics.options import some_of
from redis_queue.errors import InvalidNameError, InvalidValueError, RedisQueueError
from redis_queue.operate.access import Access
from redis_queue.operate.audit import MOST_SUBJECTS, Audit, AuditLine, Subject
from redis_queue.operate.listing import SearchReport
from redis_queue.operate.queue_row import Faults
from redis_queue.store.chunks import ANY_SIZE
from redis_queue.store.redis_errors import redact

MOST_QUEUES: Final = 3
"""Most queues that a line of the audit names."""

MOST_REASONS: Final = 5
"""Most reasons of skipped items that a text names."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of an action: a field of its form and an *option* of its command, by default ``--name``.

    *read* returns its value and raises InvalidValueError. If it is required, *missing* is what to tell without it.
    *text* shows the value in the audit.
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
    most: int = 300
    """Most characters."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a person chose: the *scope* (a queue, a flow …), the *arguments* of the action, and the items.

    Items are chosen by *references* (rows of a form, each in one version), by *ids*, or else by *conditions*: up to
    *most* of them. *exact*: ids of items that do not exist are left out. With *pinned* the plan has the references of
    the items as they are now, as many as have *room* bytes in a form, so that exactly these are confirmed. *confirmed*
    is the count that was confirmed; None before. *at*: what came later is left alone. *scan* counts what was searched,
    *faults* has the queues that cannot be read.
    """

    scope: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    references: Sequence[str] = ()
    ids: Sequence[str] | None = None
    conditions: Any = None
    most: int | None = None
    exact: bool = False
    pinned: bool = False
    room: int = ANY_SIZE
    confirmed: int | None = None
    at: datetime | None = None
    scan: SearchReport = field(default_factory=SearchReport)
    faults: Faults = field(default_factory=Faults)


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a batch of *tried* items: *count* were changed; *maybe_sent* of them may have been sent before.

    *skipped* maps reasons to numbers of items that were not changed; the other ones were gone. *subjects* are the
    changed items, if they are not those of the plan. *text* tells the result in words, without a full stop, *counts*
    tells it in numbers if one is not enough.
    """

    count: int
    maybe_sent: int = 0
    tried: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    subjects: Sequence[Subject] = ()
    text: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What an action would do to *count* items, of which *subjects* are the first; *run* does it, batch by batch.

    *question* names action and items, *text* tells the effect, *warnings* what speaks against it. *nothing* tells why
    there is nothing to do. *more*: there may be more items that match. *references* are those of the items, *fields*
    what else a form must send again. *facts* are the given arguments, *changes* labels and values before and after.
    *queues* and *detail* are for the audit. *gone* tells why items may have been left out. *tries* is the number of
    items that the batches try, if it is not *count*.
    """

    question: str
    count: int
    run: Callable[[], Iterator[Done]]
    queues: Sequence[str] = ()
    detail: str = ""
    subjects: Sequence[Subject] = ()
    text: str = ""
    warnings: Sequence[str] = ()
    nothing: str = ""
    more: bool = False
    references: Sequence[str] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    facts: Sequence[str] = ()
    changes: Sequence[tuple[str, Any, Any]] = ()
    gone: str = ""
    tries: int = 0


class Target(Protocol):
    """What actions of one kind act on, and how they are planned."""

    @property
    def name(self) -> str:
        """The name in addresses; target and verb name an action."""

    @property
    def at(self) -> str:
        """What the times of its items are, such as "due"; "" if it shows none."""

    def plan(self, action: Action, access: Access, choice: Choice) -> Plan:
        """Return what *action* would do. Raises InvalidValueError, InvalidNameError and StoreError."""


@dataclass(frozen=True, slots=True)
class Action:
    """What *verb* does to a *target*: its *label*, its *past* ("cancelled"), and its *arguments*.

    *function* does it, in the way of its target; its docstring is the description. *destroys*: what it does cannot be
    undone. *takes_all*: it may act on all items of its target. *phrase* tells the arguments in a question.
    """

    target: Target
    verb: str
    label: str
    past: str
    function: Callable[..., Any]
    arguments: Sequence[Argument] = ()
    destroys: bool = False
    takes_all: bool = True
    phrase: Callable[[Mapping[str, Any]], str] = lambda _: ""

    def plan(self, access: Access, choice: Choice) -> Plan:
        """Return what the action would do to *choice*. Raises InvalidValueError, InvalidNameError and StoreError."""
        return self.target.plan(self, access, choice)

    def given(self, choice: Choice) -> list[str]:
        """Return the given arguments as people read them."""
        given = ((argument, choice.arguments.get(argument.name)) for argument in self.arguments)
        return [argument.text(value) for argument, value in given if value not in (None, False)]

    @property
    def help(self) -> str:
        """What the action does, for the command line and the documentation."""
        return inspect.getdoc(self.function) or ""


@dataclass(slots=True)
class Total:
    """The results of all batches so far; *unwritten* tells why the line of the audit could not be written."""

    count: int = 0
    maybe_sent: int = 0
    tried: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    subjects: list[Subject] = field(default_factory=list)
    text: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    unwritten: str = ""

    def add(self, done: Done) -> None:
        """Add the result of a batch."""
        self.count += done.count
        self.maybe_sent += done.maybe_sent
        self.tried += done.tried
        self.skipped.update(done.skipped)
        self.subjects += done.subjects[: MOST_SUBJECTS - len(self.subjects)]
        self.text, self.counts = done.text or self.text, done.counts or self.counts

    @property
    def reasons(self) -> list[str]:
        """Why items were skipped, the most frequent reason first."""
        return [f"{number:,} skipped: {reason}" for reason, number in self.skipped.most_common(MOST_REASONS)]

    @property
    def maybe_sent_text(self) -> str:
        """What to tell about items that may have been sent before; "" without any."""
        if not self.maybe_sent:
            return ""
        return f"{self.maybe_sent:,} of them were claimed before and may have been sent: revoke them as well"

    def refused(self, error: BaseException) -> bool:
        """Tell whether *error* refused the input before anything was tried."""
        return isinstance(error, (InvalidNameError, InvalidValueError)) and not self.tried

    def left(self, plan: Plan) -> int:
        """Return the number of items of *plan* that were gone."""
        return max(0, plan.count - self.count - self.skipped.total())


def perform(  # noqa: PLR0917 - each is another thing
    access: Access,
    action: Action,
    plan: Plan,
    user: str,
    total: Total,
    each: Callable[[Done], bool] = lambda _: True,
) -> None:
    """Do what *plan* says, add each batch to *total*, and go on while *each* returns True for it.

    However it ends, a line in the audit says what was changed by *user*; nothing is written if nothing was changed and
    nothing failed. Raises the errors of the action, and StoreError.
    """
    at, failed = access.inspector.now(), ""
    try:
        for done in plan.run():
            total.add(done)
            if not each(done):
                break
    except BaseException as error:
        failed = "" if total.refused(error) else redact(f"{type(error).__name__}: {error}")
        raise
    finally:
        if total.count or total.skipped or failed:
            detail = "; ".join(filter(None, (plan.detail, *total.reasons, failed)))
            subjects = total.subjects or plan.subjects
            queues = some_of(list(dict.fromkeys(plan.queues)), MOST_QUEUES)
            line = AuditLine(at, user, action.verb, queues, total.count, detail, subjects)
            total.unwritten = _write(access, line)


def _write(access: Access, line: AuditLine) -> str:
    """Add *line* to the audit; the change is done, so an audit that cannot be written is only told."""
    try:
        Audit(access.catalog.client, access.catalog.prefix).record(line)
    except RedisQueueError as error:
        return str(error)
    return ""
