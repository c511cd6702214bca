"""The items that people list, search and act on: entries, dead letters, failures, messages and running tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final

from redis_queue.admission.flows import check_flow_name
from redis_queue.basics.key_template import check_key
from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.options import Conditions
from redis_queue.basics.times import When
from redis_queue.catalog import AnyQueue
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.celery.queues.contents import REACH, QueueContents
from redis_queue.celery.queues.message import Element, WaitingMessage
from redis_queue.celery.queues.open import queue_contents
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import ConfigurationError
from redis_queue.model import DeadLetter, Entry, Unread
from redis_queue.monitor.model import Failure, RunningTask, Series, Tally
from redis_queue.operate.access import Access
from redis_queue.operate.celery_queues import CeleryQueues
from redis_queue.operate.listing import LOOK_BYTES, Chunk, Listing, items_within_budget
from redis_queue.operate.queue_row import QueueRow

Waiting = tuple[Entry, TaskEntry]
task_of: Final = TaskEntry.of_item

MAX_QUEUES: Final = 200
"""Maximum number of queues that one page reads."""

LetterCursor = tuple[int, int]
"""The number of a queue among all of them, or among those with one name, and of its letters to skip."""

MessageCursor = tuple[int, int]
"""The number of a list, and of its older messages to skip."""

USUAL_MINUTES: Final = 1440
"""Minutes of history from which the usual run time is estimated."""

MAX_READ: Final = 10_000
"""Maximum number of running tasks that are read for one page."""


class Entries(Listing[Waiting, str]):
    """The entries that wait in *queue*, by due time."""

    noun = ("entry", "entries")

    def __init__(self, access: Access, queue: DelayQueue, conditions: Conditions) -> None:
        super().__init__(conditions)
        self._queue = queue
        before, after = conditions.window(access.inspector.now)
        self._window: dict[str, Any] = {"due_before": before, "due_after": after}

    @property
    def searches(self) -> bool:
        """Whether entries in the window of due times may not match."""
        return self.conditions.needs_entries

    def read(self, cursor: str | None, size: int, budget: int | None) -> Chunk[Waiting, str]:
        """Read entries, up to the first one that needs a read of its own."""
        most = LOOK_BYTES if budget is None else budget
        listed: Sequence[Entry] = self._queue.list(after=cursor, limit=size, max_bytes=most, **self._window)
        entries = listed
        if budget is None:
            large = (number for number, entry in enumerate(listed) if isinstance(entry.payload, Unread))
            entries = listed[: next(large, len(listed))]
            if listed and not entries:
                entries = self._queue.list(after=cursor, limit=1, **self._window)
        elif self.reads:
            entries = items_within_budget(listed, attrgetter("payload"))
        items = [((entry, TaskEntry.of(entry)), self._queue.cursor(entry)) for entry in entries]
        is_last = not items or len(entries) == len(listed) < size
        spent = LOOK_BYTES if len(entries) < len(listed) else 0
        return Chunk(items, None if is_last else items[-1][1], spent)

    def match(self, item: Waiting) -> bool:
        """Return whether the entry matches, and count it."""
        self.report.add(item[1].task)
        return self.conditions.match(item[1])

    def is_unread(self, item: Waiting) -> bool:
        """Return whether the payload is needed and was too large."""
        return self.reads and isinstance(item[0].payload, Unread)

    def count(self) -> int | None:
        """Return how many entries match; None where they would have to be read."""
        return None if self.conditions.needs_entries else self._queue.count(**self._window)


class Letter:
    """A dead letter of *queue*, and its task, which is read when it is needed: that takes time."""

    def __init__(self, queue: AnyQueue, letter: DeadLetter) -> None:
        self.queue, self.letter = queue, letter
        self.id, self.reason = letter.id, letter.reason

    @LazyProperty
    def called(self) -> TaskEntry:
        """The letter as a task."""
        letter = self.letter
        return TaskEntry.of(Entry(letter.id, letter.body, letter.headers, letter.died_at, letter.died_at))

    @property
    def task(self) -> str:
        """The name of the task that it calls; "" if it is none."""
        return self.called.task


class Letters(Listing[Letter, LetterCursor]):
    """The dead letters of the queues called *name*, or of all; oldest first in each queue.

    A page covers at most :data:`MAX_QUEUES` queues. Queues that cannot be read are left out and added to the faults of
    the report. Raises InvalidNameError for an unknown name.
    """

    noun = ("dead letter",)

    def __init__(self, access: Access, name: str | None, conditions: Conditions) -> None:
        super().__init__(conditions)
        self._access, self._name = access, name
        # Queues with letters, and how many, by their numbers, of those from *start* on; the next ones begin at *end*.
        self._queues: dict[int, tuple[AnyQueue, int]] = {}
        self._start, self._end, self._has_more_queues = 0, 0, False
        #: The counts of all queues; None if there are more than those of one page.
        self.rows: Sequence[QueueRow] | None = None

    def total(self) -> int | None:
        """Return the number of letters of all queues that were read; None if there are more queues."""
        return None if self.rows is None else sum(row.dead for row in self.rows)

    def read(self, cursor: LetterCursor | None, size: int, budget: int | None) -> Chunk[Letter, LetterCursor]:
        start, offset = cursor or (0, 0)
        if not self._start <= start < self._end:
            self._find_queues(start)
        number = next((number for number in self._queues if number >= start), None)
        if number is None:
            return Chunk((), (self._end, 0) if self._has_more_queues else None, ends=True)
        (queue, count), offset = self._queues[number], offset if number == start else 0
        listed: Sequence[DeadLetter] = ()
        with self.report.faults.of_queue(queue):
            listed = queue.dead_letters(offset=offset, limit=size, max_bytes=budget)
        is_cut = self.reads and budget is not None
        letters = items_within_budget(listed, lambda letter: letter.body) if is_cut else listed
        spent = sum(letter.size for letter in listed if not isinstance(letter.body, Unread))
        if len(letters) < len(listed):
            spent = max(spent, LOOK_BYTES)
        items = [(Letter(queue, letter), (number, at)) for at, letter in enumerate(letters, offset + 1)]
        # Most queues have few: the end of each needs no read of its own.
        is_last = not items or offset + len(letters) >= count
        return Chunk(items, (number + 1, 0) if is_last else items[-1][1], spent)

    def match(self, item: Letter) -> bool:
        """Return whether the letter matches, and count it."""
        self.report.add(item.task if self.reads else "")
        return self.conditions.match(item)

    def is_unread(self, item: Letter) -> bool:
        """Return whether the body is needed and was too large."""
        return self.reads and isinstance(item.letter.body, Unread)

    def _find_queues(self, start: int) -> None:
        catalog = self._access.catalog
        if self._name is None:
            listing = catalog.listing(offset=start, limit=MAX_QUEUES)
            found, after = listing.known, listing.next
        else:
            found, after = catalog.known(self._name)[start:], None
        self._queues, self._start = {}, start
        self._end, self._has_more_queues = after or start + max(1, len(found)), after is not None
        rows = self._access.inspector.queues(found)
        for number, (known, row) in enumerate(zip(found, rows, strict=True), start):
            if row.error:
                self.report.faults.add(row)
            elif row.dead:
                with self.report.faults.of(known.kind, known.name):
                    self._queues[number] = catalog.open(known), row.dead
        self.rows = rows if not start and after is None else None


class FailureList(Listing[Failure, str]):
    """The failures that are kept, the last one first; spans of time are counted back from now."""

    noun = ("failure",)

    def __init__(self, access: Access, conditions: Conditions) -> None:
        super().__init__(conditions)
        self._failures = access.monitor.failures
        self._window = {"since": point(access, conditions.due_after), "until": point(access, conditions.due_before)}

    @property
    def searches(self) -> bool:
        """Whether failures in the time window may not match."""
        return self.conditions.has("task", "exception", "text", "worker")

    def total(self) -> int:
        """Return the number of all failures."""
        return self._failures.count()

    def read(self, cursor: str | None, size: int, budget: int | None) -> Chunk[Failure, str]:  # noqa: ARG002
        """Read failures, without their tracebacks and messages."""
        rows, following = self._failures.list(after=cursor, limit=size, **self._window)
        return Chunk([(row, self._failures.cursor(row)) for row in rows], following)


def point(access: Access, when: When | None) -> datetime | None:
    """Return *when* as a time of the server; a span is counted back from now, whatever its sign."""
    return access.inspector.now() - abs(when) if isinstance(when, timedelta) else when


class Messages(Listing[WaitingMessage, MessageCursor]):
    """The messages that wait in the queue *name*, the next ones for workers first.

    With *key*, those that wait for a place with this key of the flow *name*, in any queue.

    None is read beyond the :data:`REACH` oldest of each priority. While workers take messages, a next page may skip
    some. Raises StoreError; without a key OperationalError, and ConfigurationError without an app, or if the broker is
    not Redis.
    """

    noun = ("message",)
    reach: Final = REACH

    def __init__(
        self,
        access: Access,
        name: str,
        conditions: Conditions,
        key: str | None = None,
        *,
        open_queue: Callable[[str], QueueContents] | None = None,
    ) -> None:
        """With *open_queue*, it is opened over the connection of others."""
        super().__init__(conditions)
        if key is None:
            celery_queues_of(access)
        self._access, self._name, self._key = access, name, key
        self._open_queue = open_queue
        self._contents: QueueContents

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the queue for as long as items are read."""
        opened = None if self._open_queue is None else nullcontext(self._open_queue(self._name))
        with opened or contents_of(self._access, self._name, self._key) as self._contents:
            yield

    def read(self, cursor: MessageCursor | None, size: int, budget: int | None) -> Chunk[WaitingMessage, MessageCursor]:  # noqa: ARG002
        number, offset = cursor or (0, 0)
        if number >= self._contents.lists:
            return Chunk((), None)
        found: list[Element] = self._contents.read(number, offset, size)
        items = [(WaitingMessage.of(element), (number, at)) for at, element in enumerate(found, offset + 1)]
        spent = sum(element.size for element in found)
        return Chunk(items, items[-1][1] if items else (number + 1, 0), spent)


def contents_of(access: Access, name: str, key: str | None) -> AbstractContextManager[QueueContents]:
    """Return the messages of the queue *name*, or with *key* those of this key of the flow *name*; see Messages."""
    if key is None:
        return queue_contents(access.app, name)
    backlog = access.backlog
    (state,) = access.flows.of_keys.states(check_flow_name(name), [check_key(key)])
    return nullcontext(QueueContents(None, "", backlog, backlog.groups_of(name, state)))


def celery_queues_of(access: Access) -> CeleryQueues:
    """Return Celery's queues of the app. Raises ConfigurationError without an app."""
    if access.celery_queues is None:
        raise ConfigurationError("Celery's queues need an app: redis-queue -A APP, or celery -A APP redis-queue")
    return access.celery_queues


def message_row(message: WaitingMessage, *, with_body: bool, fields: Sequence[str] = ("waits_for",)) -> dict[str, Any]:
    """Return what people see of a message, with these *fields* of it besides those of all messages."""
    shown = {
        "id": message.id,
        "task": message.task,
        "since": message.since,
        "bytes": message.element.size,
        "priority": message.element.step,
        "retries": message.retries,
        **{name: getattr(message, name) for name in fields},
    }
    return {**shown, "args": message.args, "kwargs": message.kwargs} if with_body else shown


@dataclass(frozen=True, slots=True)
class RunningRow:
    """A running task, for how many *seconds* it runs, and the p50 and p95 of its run time in the last day, if known."""

    task: RunningTask
    seconds: float
    p50: float | None = None
    p95: float | None = None

    @property
    def is_slow(self) -> bool:
        """Whether it takes longer than 95 % of the runs."""
        return self.p95 is not None and self.seconds > self.p95


def running(access: Access, *, task: str = "", worker: str = "", limit: int = 200) -> list[RunningRow]:
    """Return up to *limit* tasks that have run for a second or more, longest first; *task*, *worker*: parts of names.

    It reads up to :data:`MAX_READ` of them. Raises StoreError.
    """
    found = access.monitor.workers.running(limit=MAX_READ)
    matching = [row for row in found if task in row.task and worker in row.worker]
    matching.sort(key=lambda row: row.since)
    return list(_rows(access, matching[:limit], access.inspector.now()))


def _rows(access: Access, tasks: list[RunningTask], now: datetime) -> Iterator[RunningRow]:
    usual = access.monitor.history.totals(USUAL_MINUTES) if tasks else {}
    for task in tasks:
        seconds = max(0.0, (now - task.since).total_seconds())
        tally = usual.get(Series(task.task, task.queue), Tally())
        yield RunningRow(task, seconds, tally.usual(0.5), tally.usual(0.95))
