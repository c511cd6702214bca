"""TaskRow: a task in any place as one row, and lists of the places that have none of their own."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from kombu.exceptions import OperationalError

from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.options import Conditions, counted
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.celery.queues.contents import InFlightMessages
from redis_queue.celery.queues.message import WaitingMessage
from redis_queue.celery.queues.open import in_flight, on_redis, opener
from redis_queue.errors import ConfigurationError, InvalidValueError, StoreError, StoreUnavailableError
from redis_queue.model import Unread
from redis_queue.monitor.model import Failure, Run, RunningTask
from redis_queue.operate.access import Access
from redis_queue.operate.items import MAX_QUEUES, MAX_READ, Entries, Letter, Messages, Waiting
from redis_queue.operate.listing import LOOK_BYTES, Chunk, Listing
from redis_queue.operate.queue_row import BROKEN, QueueRow, fault_text
from redis_queue.store.ids import is_id

MAX_READS: Final = 500
"""Reads in the queues of one place for one page; most of them may find nothing."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task in one place: its *state* there.

    *at* is when it was sent, is due, started, died or ended, None if that is unknown; *seconds* are those of its run.
    *error* is why it failed or died. *unread*: its message is too large to be read here. *reference*: which message of
    its queue a waiting task has.
    """

    state: str
    id: str
    task: str
    at: datetime | None
    queue: str = ""
    worker: str = ""
    seconds: float | None = None
    args: str = ""
    kwargs: str = ""
    error: str = ""
    release: str = ""
    stamps: Mapping[str, Any] = field(default_factory=dict)
    unread: bool = False
    is_task: bool = True
    reference: str = ""

    @classmethod
    def of(cls, state: str, source: Any, at: datetime | None, **more: Any) -> TaskRow:
        """Return *source* as a row: what it knows under the names of the fields, unless *more* has them."""
        known = {name: getattr(source, name) for name in _SHARED if hasattr(source, name)}
        return cls(state, at=at, **{**known, **more})

    @property
    def message(self) -> str:
        """What a text is searched in, besides the arguments."""
        return f"{self.id}\n{self.error}"


_SHARED: Final = ("id", "task", "queue", "worker", "seconds", "args", "kwargs", "error", "release", "stamps")
"""Fields of a row that its sources have under the same names."""


def row_of_running(found: tuple[RunningTask, datetime]) -> TaskRow:
    """Return a running task as a row."""
    task, now = found
    return TaskRow.of("running", task, task.since, seconds=max(0.0, (now - task.since).total_seconds()))


class Fetched(NamedTuple):
    """A message of *queue* that a worker has, and its *running* task as its worker reports it; None if it does not.

    It *is_listed* if the running task meets the conditions by itself, and so is in the list of those.
    """

    queue: str
    message: WaitingMessage
    running: RunningTask | None = None
    is_listed: bool = False

    @property
    def id(self) -> str:
        """The id of the task."""
        return self.message.id

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.message.task


def row_of_fetched(found: Fetched) -> TaskRow:
    """Return a message that a worker has as a row: of a running task if it tells more than the report of its worker."""
    message, running, is_unread = found.message, found.running, not found.message.element.head
    is_task = (is_unread or found.task != "") and not found.is_listed
    known = {"queue": found.queue, "unread": is_unread, "is_task": is_task}
    if running is None:
        return TaskRow.of("fetched", message, message.since, **known)
    return TaskRow.of("running", message, running.since, worker=running.worker, **known)


def row_of_message(found: tuple[str, WaitingMessage]) -> TaskRow:
    """Return a waiting message as a row."""
    queue, message = found
    reference, is_task = message.element.reference, message.task != ""
    return TaskRow.of("waiting", message, message.since, queue=queue, reference=reference, is_task=is_task)


def row_of_entry(found: tuple[str, Waiting]) -> TaskRow:
    """Return a delayed task as a row."""
    entry, task = found[1]
    return _stored("delayed", task, task.due_at, isinstance(entry.payload, Unread))


def row_of_letter(letter: Letter) -> TaskRow:
    """Return a dead letter as a row."""
    is_unread = isinstance(letter.letter.body, Unread)
    return _stored("dead letter", letter.called, letter.letter.died_at, is_unread, letter.reason)


def _stored(state: str, task: TaskEntry, at: datetime, unread: bool, error: str = "") -> TaskRow:
    # A retry may have another id than its task.
    known = task.headers.get("id")
    id_ = known if isinstance(known, str) and is_id(known) else task.id
    return TaskRow.of(state, task, at, id=id_, error=error, unread=unread, is_task=unread or task.task != "")


def row_of_failure(failure: Failure) -> TaskRow:
    """Return a failure as a row."""
    return TaskRow.of("failed", failure, failure.failed_at)


def row_of_run(found: tuple[Run, bool]) -> TaskRow:
    """Return the last run of a task as a row; no task if its failure is kept, which is another row."""
    run, is_kept_failure = found
    seconds = None if run.started_at is None else max(0.0, (run.ended_at - run.started_at).total_seconds())
    return TaskRow.of(run.outcome, run, run.ended_at, seconds=seconds, is_task=not is_kept_failure)


class RunningList(Listing[tuple[RunningTask, datetime], int]):
    """The tasks that have run for a second or more, longest first, each with the time now; of :data:`MAX_READ`."""

    def __init__(self, access: Access, conditions: Conditions) -> None:
        super().__init__(conditions)
        self._access = access
        #: Which are not found; "" for none.
        self.note = "those acknowledged early have no stamp" if conditions.has("stamp") else ""

    @LazyProperty
    def _tasks(self) -> list[RunningTask]:
        return sorted(self._access.monitor.workers.running(limit=MAX_READ), key=lambda task: (task.since, task.id))

    def total(self) -> int:
        """Return the number of these tasks."""
        return len(self._tasks)

    def read(self, cursor: int | None, size: int, budget: int | None) -> Chunk[tuple[RunningTask, datetime], int]:  # noqa: ARG002
        start, now = cursor or 0, self._access.inspector.now()
        items = [((task, now), at) for at, task in enumerate(self._tasks[start : start + size], start + 1)]
        return Chunk(items, start + size if start + size < len(self._tasks) else None)


class FetchedList(Listing[Fetched, tuple[int, int]]):
    """The messages that workers have: fetched, running, or about to be settled.

    Raises ConfigurationError without an app, OperationalError and StoreError.
    """

    def __init__(self, access: Access, conditions: Conditions) -> None:
        super().__init__(conditions)
        if access.app is None:
            raise ConfigurationError("needs the Celery app: redis-queue -A APP")
        self._access = access
        self._places: Sequence[InFlightMessages] = ()
        self._size = 0
        #: Which messages are not among these; "" for none.
        self.note = "" if on_redis(access.app) else "only those of flows: the broker is not Redis"

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the records for as long as items are read."""
        with in_flight(self._access.app) as self._places:
            self._size = sum(place.size() for place in self._places)
            yield

    def total(self) -> int:
        """Return the number of messages that workers had when they were read last."""
        return self._size

    @LazyProperty
    def _running(self) -> dict[str, RunningTask]:
        return {task.id: task for task in self._access.monitor.workers.running(limit=MAX_READ)}

    def read(
        self,
        cursor: tuple[int, int] | None,
        size: int,
        budget: int | None,  # noqa: ARG002 - ids are in the messages
    ) -> Chunk[Fetched, tuple[int, int]]:
        """Read messages; one that is larger than :data:`LOOK_BYTES` is without its contents."""
        number, offset = cursor or (0, 0)
        if number >= len(self._places):
            return Chunk((), None)
        items: list[tuple[Fetched, tuple[int, int]]] = []
        spent = 0
        for at, (queue, element) in enumerate(self._places[number].read(offset, size, LOOK_BYTES), offset + 1):
            message = WaitingMessage.of(element)
            running = self._running.get(message.id)
            is_listed = running is not None and self.conditions.match(row_of_running((running, running.since)))
            items.append((Fetched(queue, message, running, is_listed), (number, at)))
            spent += element.size
        return Chunk(items, items[-1][1] if items else (number + 1, 0), spent)


class RunList(Listing[tuple[Run, bool], str]):
    """The last run of each task that ended lately, the last one first, and whether its failure is kept."""

    def __init__(self, access: Access, conditions: Conditions) -> None:
        super().__init__(conditions)
        self._monitor = access.monitor
        self._window: dict[str, Any] = {"since": conditions.due_after, "until": conditions.due_before}

    def total(self) -> int:
        """Return the number of tasks with kept runs."""
        return self._monitor.runs.count()

    def read(self, cursor: str | None, size: int, budget: int | None) -> Chunk[tuple[Run, bool], str]:  # noqa: ARG002
        """Read runs, and which of their failures are kept."""
        found, following = self._monitor.runs.page(after=cursor, limit=size, **self._window)
        failed = [run.id for run, _ in found if run.outcome == "failed"]
        kept = {failure.id for failure in self._monitor.failures.summaries(failed)} if failed else set()
        return Chunk([((run, run.id in kept), behind) for run, behind in found], following)


QueueCursor = tuple[str, Any]
"""The name of a queue, and the cursor in it."""

Make = Callable[[str], Listing[Any, Any]]


class QueueLists(Listing[tuple[str, Any], QueueCursor]):
    """What the lists of the queues *names* have, by name; *opening* opens what makes the list of one.

    A queue that cannot be read is left out, and added to the faults. A page ends after :data:`MAX_READS` reads.
    """

    def __init__(
        self,
        conditions: Conditions,
        names: Sequence[str],
        opening: AbstractContextManager[Make],
        total: Callable[[], int],
        *,
        note: str = "",
    ) -> None:
        super().__init__(conditions)
        self._names, self._opening = sorted(names), opening
        #: Which queues are not among these; "" for none.
        self.note = note
        #: Counts the tasks in all of these queues.
        self.total = total
        self._reads = 0
        self._current: tuple[str, Listing[Any, Any]] | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the queues for as long as items are read."""
        with self._opening as self._make:
            yield

    def read(self, cursor: QueueCursor | None, size: int, budget: int | None) -> Chunk[tuple[str, Any], QueueCursor]:
        name, inner = cursor or ("", None)
        at = bisect_left(self._names, name or "")
        if at == len(self._names):
            return Chunk((), None)
        if self._names[at] != name:
            name, inner = self._names[at], None
        self._reads += 1
        chunk: Chunk[Any, Any] = Chunk((), None)
        try:
            chunk = self._list(name).read(inner, size, budget)
        except (InvalidValueError, StoreUnavailableError):
            raise
        except (OperationalError, *BROKEN) as error:
            self.report.faults.add(QueueRow("queue", name, error=fault_text(error)))
        following = self._names[at + 1] if at + 1 < len(self._names) else None
        behind = (name, chunk.next) if chunk.next is not None else None if following is None else (following, None)
        items = [((name, item), (name, place)) for item, place in chunk.items]
        return Chunk(items, behind, chunk.spent, ends=self._reads % MAX_READS == 0)

    def _list(self, name: str) -> Listing[Any, Any]:
        if self._current is None or self._current[0] != name:
            listing = self._make(name)
            with listing.opened():
                self._current = name, listing
        return self._current[1]


def delayed(access: Access, conditions: Conditions) -> QueueLists:
    """Return the entries of up to :data:`MAX_QUEUES` DelayQueues."""
    listing = access.catalog.listing(kind="delay", limit=MAX_QUEUES)
    names = [known.name for known in listing.known]

    def make(name: str) -> Entries:
        return Entries(access, access.delay_queue(name), conditions)

    return QueueLists(
        conditions,
        names,
        nullcontext(make),
        lambda: sum(len(access.delay_queue(name)) for name in names),
        note=f"only those of the first {counted(len(names), 'queue')} by name" if listing.next is not None else "",
    )


def waiting(access: Access, conditions: Conditions) -> QueueLists:
    """Return the messages of the :data:`MAX_QUEUES` longest queues of the app.

    Raises ConfigurationError without an app, or if the broker is not Redis, and StoreError if it is away.
    """
    if access.celery_queues is None:
        raise ConfigurationError("needs the Celery app: redis-queue -A APP")
    overview = access.celery_queues.overview(limit=MAX_QUEUES, order="ready")
    if overview.error and overview.ready is None:
        raise StoreError(overview.error)
    is_redis = on_redis(access.app)
    rows = [row for row in overview.rows if row.waiting_for_place or (is_redis and row.ready)]
    if not rows and not is_redis:
        raise ConfigurationError("the broker is not Redis: reading messages would change their order")
    # On other brokers, only the messages that wait for a place can be read.
    total = sum((row.ready or 0) if is_redis else row.waiting_for_place for row in rows)
    are_all = overview.next is None or (overview.ready or 0) <= sum(row.ready or 0 for row in overview.rows)
    return QueueLists(
        conditions,
        [row.name for row in rows],
        _opening_messages(access, conditions),
        lambda: total,
        note="" if are_all else f"only those of the {counted(len(rows), 'longest queue')}",
    )


@contextmanager
def _opening_messages(access: Access, conditions: Conditions) -> Iterator[Make]:
    with opener(access.app) as open_queue:
        yield lambda name: Messages(access, name, conditions, open_queue=open_queue)
