"""Timeline: the delayed tasks of an app, and a clock that the test moves."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, cast

from celery import Celery
from celery.exceptions import TimeoutError as NoResultError

from redis_queue.basics.times import Seconds, duration_ms, from_ms, point_ms, to_ms
from redis_queue.celery.admission.sender import uses_admission
from redis_queue.celery.durable_tasks import DurableTasks
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import FlowHeader
from redis_queue.celery.store import Store
from redis_queue.errors import InvalidDelayError, InvalidValueError
from redis_queue.model import Entry
from redis_queue.store.chunks import CHUNK
from redis_queue.testing.expectation import Expectation, not_scheduled, still_scheduled, written
from redis_queue.testing.installation import Patches, TravelQueue, install
from redis_queue.testing.tasks import TaskRow, TaskRun, row_of, row_of_entry, run_task
from redis_queue.testing.travel import MoveTo, TravelClock, TravelSender

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_RUNS: Final = 10_000
_SECOND: Final = timedelta(seconds=1)
_MILLISECOND: Final = timedelta(milliseconds=1)


class Timeline:
    """The delayed tasks of *app* for a ``with`` block, stored in the Redis *url*, which must be empty.

    All delayed tasks are stored there and fall due only by :meth:`travel`. Tasks sent at once run at once in this
    process if ``eager`` (default: the app's ``task_always_eager``), else they stay in a broker in memory. Results are
    kept in memory, too: neither broker nor result backend is needed. The app is the current app of this
    thread, so shared tasks belong to it. Afterwards its former state is restored.

    With ``task_eager_propagates`` the exception of a failed task leaves the call that ran it; else see
    :attr:`failures`. A task that another task sends at once runs after that one has ended.
    """

    def __init__(self, app: Celery, url: str) -> None:
        self.app = app
        #: Whether tasks sent at once run at once.
        self.eager = bool(app.conf.task_always_eager)
        #: The tasks sent at once so far.
        self.sent: list[TaskRow] = []
        #: Every task that ran, in order.
        self.runs: list[TaskRun] = []
        self._url = url
        self._clock = TravelClock()
        self._patches = Patches()
        self._pending: deque[tuple[TaskRow, str]] = deque()
        self._flows = TravelSender(app, lambda: self.eager, self._note)
        self._runner: int | None = None
        self._kept: set[str] = set()
        self._durable: DurableTasks | None = None

    def __enter__(self) -> Self:
        try:
            self._durable = install(
                self.app,
                self._patches,
                url=self._url,
                clock=self._clock,
                now=lambda: self.now,
                take=self._take,
                after_send=self._run_pending,
                before_wait=self._before_wait,
                flow_sender=self._flows,
            )
        except BaseException:
            self._patches.undo()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._kept:
                with self.app.connection_for_write() as connection:
                    for name in self._kept:
                        connection.default_channel.queue_purge(name)
            Store.of(self.app).client.close()
        finally:
            self._patches.undo()

    @property
    def durable(self) -> DurableTasks:
        """The app's DurableTasks: cancel, reschedule, get."""
        if self._durable is None:
            raise InvalidValueError("this Timeline is closed: use it within its with block")
        return self._durable

    @property
    def _queue(self) -> TravelQueue:
        return cast("TravelQueue", self.durable.queue)

    @property
    def now(self) -> datetime:
        """The time of the test: the clock of the process plus the travelled time."""
        return from_ms(self._clock())

    @property
    def scheduled(self) -> list[TaskRow]:
        """All waiting tasks, by due time."""
        return [row_of_entry(self.app, entry) for entry in self._queue]

    @property
    def failures(self) -> list[TaskRun]:
        """The runs that failed."""
        return [run for run in self.runs if run.exception is not None]

    def follow(self, move_to: MoveTo) -> None:
        """Move the clock of the process with each travel: *move_to* of time-machine or freezegun."""
        self._clock.move_to = move_to

    def assert_scheduled(
        self,
        task: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        in_: Seconds | None = None,
        at: datetime | None = None,
        queue: str | None = None,
        count: int = 1,
        within: Seconds = _SECOND,
    ) -> list[TaskRow]:
        """Return the waiting tasks that meet all conditions; fail unless there are *count*.

        *task* is a Celery task or its name. An omitted condition matches anything. *in_* (seconds or timedelta) counts
        from :attr:`now`, *at* is an aware datetime; *within* is the tolerance of the due time.
        """
        __tracebackhide__ = True
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidValueError(f"count={count!r}: must be a whole number above 0; or call assert_not_scheduled")
        if task is None:
            raise InvalidValueError("task=None: must be a Celery task or its name")
        now = self.now
        expectation = Expectation.of(task, now, args=args, kwargs=kwargs, in_=in_, at=at, queue=queue, within=within)
        rows = self.scheduled
        found = [row for row in rows if not expectation.differences(row, self._age)]
        if len(found) != count:
            raise AssertionError(
                not_scheduled(expectation, rows, count=count, found=len(found), sent=self.sent, now=now, age=self._age)
            )
        return found

    def assert_not_scheduled(
        self,
        task: Any = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        in_: Seconds | None = None,
        at: datetime | None = None,
        queue: str | None = None,
        within: Seconds = _SECOND,
    ) -> None:
        """Fail if a waiting task meets all conditions; without conditions: if any task waits."""
        __tracebackhide__ = True
        now = self.now
        expectation = Expectation.of(task, now, args=args, kwargs=kwargs, in_=in_, at=at, queue=queue, within=within)
        found = [row for row in self.scheduled if not expectation.differences(row, self._age)]
        if found:
            raise AssertionError(still_scheduled(expectation, found, now))

    def travel(
        self,
        delta: Seconds | None = None,
        /,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        limit: int = MAX_RUNS,
    ) -> list[TaskRun]:
        """Let time pass and run the tasks that fall due, in order, each at its due time; return the runs.

        Tasks that these delay run, too, if they fall due meanwhile. Without a time, only due tasks run. Raises
        InvalidDelayError for a time below 0, RuntimeError if more than *limit* tasks would run.
        """
        parts = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
        if delta is not None and parts:
            raise InvalidDelayError(f"delta={delta!r} and {parts}: expected only one of them")
        return self._travel(self._clock() + duration_ms(parts if delta is None else delta, name="delta"), limit)

    def travel_to(self, moment: datetime, *, limit: int = MAX_RUNS) -> list[TaskRun]:
        """Let time pass until *moment* (aware), as :meth:`travel` does. Raises InvalidDelayError for the past."""
        target = point_ms(moment, name="moment")
        if target < self._clock():
            raise InvalidDelayError(f"moment={moment!r}: must not be in the past, now is {written(self.now)}")
        return self._travel(target, limit)

    def _travel(self, target: int, limit: int) -> list[TaskRun]:
        if self._runner is not None:
            raise InvalidValueError("a task cannot travel: only the test moves the clock")
        first = len(self.runs)
        try:
            # Limits may have changed.
            self._run_pending()
            while True:
                entry, admitted_at = self._next(target), self._flows.due_ms
                if entry is None and admitted_at > target:
                    break
                if len(self.runs) - first >= limit:
                    what = "a task of a flow" if entry is None else entry.id
                    raise RuntimeError(f"{limit} tasks ran, and {what} is next: pass a higher limit= if intended")
                if entry is not None and to_ms(entry.due_at) <= admitted_at:
                    self._clock.stop_at(to_ms(entry.due_at))
                    self._run_entry(entry)
                else:
                    self._clock.stop_at(int(admitted_at))
                    self._run_pending()
            self._clock.stop_at(target)
        finally:
            self._clock.resume()
        return self.runs[first:]

    def _next(self, target: int) -> Entry | None:
        """Return the first entry due by *target*; at equal due times, the one that was stored first."""
        queue = self._queue
        head = queue.list(limit=1, due_before=from_ms(target + 1))
        if not head:
            return None
        together = queue.list(limit=CHUNK, due_before=head[0].due_at + _MILLISECOND)
        return min(together, key=lambda entry: (entry.due_at, queue.order.get(entry.id, 0)))

    def _run_entry(self, entry: Entry) -> None:
        row = row_of_entry(self.app, entry, sends=True)
        if self._queue.cancel(entry.id).taken_out:
            header = FlowHeader.of(row.headers)
            if row.task not in self.app.tasks:
                self.sent.append(row)  # for a worker of another project
            elif header is not None:
                self._flows.send(row.envelope, row.queue, header, is_new=False)
            else:
                self._pending.append((row, ""))
            self._run_pending()

    def _take(self, envelope: Envelope) -> bool:
        row = self._note(envelope)
        taken = self.eager and row.task in self.app.tasks
        if taken:
            self._pending.append((row, ""))
        else:
            self._kept.add(row.queue)
        return taken

    def _note(self, envelope: Envelope) -> TaskRow:
        row = self._row_of(envelope)
        self.sent.append(row)
        return row

    def _row_of(self, envelope: Envelope) -> TaskRow:
        now = self.now
        # The message stays in this process: any content type may be read, as in Celery's eager mode.
        return row_of(self.app, envelope, due_at=now, stored_at=now, accept=[envelope.content_type])

    def _run_pending(self) -> None:
        """Run the tasks sent at once, unless a task is running: then they run after it."""
        if self._runner is not None:
            return
        first = len(self.runs)
        self._runner = get_ident()
        try:
            while self._fill():
                if len(self.runs) - first >= MAX_RUNS:
                    raise RuntimeError(
                        f"{MAX_RUNS} tasks ran, each sent by another one: {self._pending[0][0].call} is next"
                    )
                self._run_one()
        finally:
            self._runner = None
        failed = next((run.exception for run in self.runs[first:] if run.exception is not None), None)
        if failed is not None and self.app.conf.task_eager_propagates:
            raise failed

    def _fill(self) -> bool:
        """Take the next task of a flow if no other one is pending; return whether one is."""
        if not self._pending and uses_admission(self.app):
            taken = self._flows.take()
            if taken is not None:
                tag, envelope = taken
                self._pending.append((self._row_of(envelope), tag))
        return bool(self._pending)

    def _run_one(self) -> None:
        row, tag = self._pending.popleft()
        try:
            if row.task in self.app.tasks:
                self.runs.append(run_task(self.app, row, self.now))
        finally:
            if tag:
                self._flows.settle(tag)

    def _before_wait(self, task_id: str) -> None:
        """Run the tasks sent at once. Raises Celery's TimeoutError if only a travel can bring the result."""
        while self._fill():
            self._run_one()
        # A result may still come from another thread, or from a worker in this process.
        can_come = self._runner not in (None, get_ident()) or self.app.loader.worker_initialized
        if not can_come and not self.app.AsyncResult(task_id).ready():
            raise NoResultError(f"no result: {task_id} {self._why_not(task_id)}")

    def _why_not(self, task_id: str) -> str:
        """Return why a task has no result."""
        entry = self._queue.get(task_id)
        if entry is not None:
            return f"waits until {written(entry.due_at)}; travel to it first"
        if task_id in self._flows.waiting:
            return "waits for its limits; travel until they admit it"
        ran = next((run for run in reversed(self.runs) if run.id == task_id), None)
        if ran is not None:
            return f"ended as {ran.state}"
        if any(row.id == task_id for row in self.sent):
            return "was sent, but nothing runs it here; eager = True does if the app knows the task"
        return "was not sent yet; travel to the task that sends it"

    def _age(self, since: datetime) -> timedelta:
        return timedelta(milliseconds=self._clock.age(to_ms(since)))
