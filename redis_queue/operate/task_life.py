"""The life of one task: what each source knows of it, as one timeline, and what it did with its time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, Literal, TypeVar

from kombu.exceptions import OperationalError

from redis_queue.basics.logs import hide_secrets
from redis_queue.basics.options import Conditions
from redis_queue.basics.times import monotonic, span_text
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.next_steps import NextStep
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.celery.queues.message import WaitingMessage
from redis_queue.celery.results import ResultRecord
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import ConfigurationError, RedisQueueError
from redis_queue.model import Item
from redis_queue.monitor.model import Failure, Run, RunningTask
from redis_queue.operate.access import Access
from redis_queue.operate.audit import Audit, AuditLine
from redis_queue.operate.chain import MAX_LOOKS, Stop, message_of, next_of, stop_before
from redis_queue.operate.items import Messages, task_of
from redis_queue.operate.queue_row import BROKEN
from redis_queue.operate.task_rows import FetchedList
from redis_queue.store.chunks import CHUNK
from redis_queue.store.ids import check_id, retry_id

T = TypeVar("T")

MAX_RECORD: Final = 1024 * 1024
"""Maximum bytes of a stored entry that are read."""

MAX_DELAY_QUEUES: Final = 10
MAX_CELERY_QUEUES: Final = 20

MAX_FETCHED: Final = 10_000
"""Maximum number of messages in flight that are read."""

NOT_FETCHED: Final = f"not among the first {MAX_FETCHED:,} messages that workers have"

SEARCH_SECONDS: Final = 1.0
"""After this time, no further Celery queue is searched."""

SAME: Final = timedelta(seconds=2)
"""Two records of a failure within this time are of one run."""

NO_RUNS: Final = "kept for two days, of at most 20,000 tasks: runs that did not succeed, and a sample of the others"
DISPATCHED: Final = "dispatched between then and the fetch"
"""The dispatcher keeps no time for each task."""

NO_STOP: Final = f"not after any of {MAX_LOOKS} failures: the last ones, or those near the time of its result"
NO_AUDIT: Final = "looked at the last 500 actions, of which the first ten tasks are kept"

WORDS: Final = {"delayed": "delayed", "in_flight": "being sent", "dead": "dead letter", "ready": "ready"}
"""States of stored entries, as people read them."""

RESULT_STATES: Final = {
    "SUCCESS": "succeeded",
    "FAILURE": "failed",
    "RETRY": "retried",
    "REVOKED": "revoked",
    "STARTED": "running",
}


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """Something that happened to a task, or will happen. *at* is None if the time is unknown.

    *after*: seconds since the event before it.
    """

    at: datetime | None
    what: str
    detail: str = ""
    after: float | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A place that was searched: whether it knows the task, and why not."""

    name: str
    known: bool
    note: str = ""


@dataclass(slots=True)
class TaskLife:
    """All that is known of the task *id*. *state* is "unknown" if no source knows it.

    *stored* is its entry in a DelayQueue. *waiting* is its message in a queue; if it *is_fetched*, a worker has it and
    has not started it. *runs* has the last run first. *message* is None if no source has it. *stop* is the failed task
    because of which this one was never sent. *events* are in order, unknown times first.
    """

    id: str
    at: datetime
    runs: Sequence[Run] = ()
    running: RunningTask | None = None
    stored: tuple[DelayQueue, Item, TaskEntry] | None = None
    waiting: tuple[str, WaitingMessage] | None = None
    is_fetched: bool = False
    failure: Failure | None = None
    result: ResultRecord | None = None
    actions: Sequence[AuditLine] = ()
    message: Envelope | None = None
    stop: Stop | None = None
    sources: list[Source] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        """Whether any source knows the task."""
        return any(source.known for source in self.sources)

    @property
    def task(self) -> str:
        """The name of the task; "" if it is unknown."""
        subjects = (subject.task for action in self.actions for subject in action.subjects if subject.id == self.id)
        steps = [step.task for step in self.stop.next if step.id == self.id] if self.stop else []
        return self._known("task") or next(filter(None, (*subjects, *steps)), "")

    @property
    def queue(self) -> str:
        """The Celery queue; "" if it is unknown."""
        return self.waiting[0] if self.waiting else self._known("queue")

    @property
    def worker(self) -> str:
        """The worker that runs it, or ran it last; "" if it is unknown."""
        return self._known("worker")

    @property
    def arguments(self) -> tuple[str, str]:
        """The texts of args and kwargs; "" if they are unknown."""
        stored, waiting = self.stored and self.stored[2], self.waiting and self.waiting[1]
        places = (stored, waiting, self.running, self.failure, *self.runs)
        return next(
            ((place.args, place.kwargs) for place in places if place and (place.args or place.kwargs)), ("", "")
        )

    @property
    def lineage(self) -> tuple[str, str, str]:
        """The ids of root, parent and group; "" for each that is unknown."""
        headers = self.stored[2].headers if self.stored else self.message.headers if self.message else {}
        if self.stop is not None:
            return self.stop.lineage_of(self.id)
        kept: list[Run | RunningTask] = [*([self.running] if self.running else []), *self.runs]
        record = self.result
        roots = [*(row.root for row in kept), headers.get("root_id")]
        # A retry names the task itself as its parent.
        others = [row.parent for row in kept if row.parent != self.id]
        parents = [*others, headers.get("parent_id"), record and record.parent]
        groups = [*(row.group for row in kept), headers.get("group"), record and record.group]
        root, parent, group = (
            next((found for found in places if isinstance(found, str) and found), "")
            for places in (roots, parents, groups)
        )
        return root, parent if parent != self.id else "", group

    @property
    def next(self) -> tuple[NextStep, ...] | None:
        """The tasks that its message names to come after it; None if they are unknown."""
        return next_of(self.message)

    @property
    def error(self) -> str:
        """The exception with which it failed last; "" if it did not, or if that is unknown."""
        if self.state not in ("failed", "revoked", "not sent"):
            return ""
        texts = (
            self.failure.error if self.failure is not None else "",
            self.runs[0].error if self.runs else "",
            self.result.error if self.result is not None else "",
        )
        return next(filter(None, texts), "")

    @property
    def state(self) -> str:
        """What it does now: running, waiting, delayed, being sent, dead letter, or how it ended; else "unknown".

        "not sent": a task before it failed.
        """
        return next(self._states())

    @property
    def events(self) -> list[LifeEvent]:
        """The timeline."""
        found = [*self._of_runs(), *self._of_now(), *self._of_records()]
        known = sorted((event.at, number) for number, event in enumerate(found) if event.at is not None)
        ordered = [event for event in found if event.at is None]
        before: datetime | None = None
        for at, number in known:
            after = None if before is None else (at - before).total_seconds()
            ordered.append(replace(found[number], after=after))
            before = at
        return ordered

    def look_at(self, name: str, read: Callable[[], T], nothing: str) -> T | None:
        """Return what *read* returns, and note whether this source knows the task; None after an error of it."""
        try:
            found = read()
        except ConfigurationError as error:
            found, nothing = None, str(error)
        except (RedisQueueError, OperationalError, *BROKEN) as error:
            found, nothing = None, f"cannot be read: {hide_secrets(str(error))}"
        self.sources.append(Source(name, bool(found), "" if found else nothing))
        return found

    def _states(self) -> Iterator[str]:
        """Yield states, the most certain one first."""
        last = self.runs[0] if self.runs else None
        if self.running is not None and (last is None or last.ended_at < self.running.since):
            yield "running"
        if self.stored is not None:
            item = self.stored[1]
            if item.state != "dead" or last is None or item.at is None or last.ended_at <= item.at:
                yield WORDS[item.state]
        if self.waiting is not None:
            yield "fetched" if self.is_fetched else "waiting"
        if last is not None:
            yield last.outcome
        if self.failure is not None or self.stop is not None:
            yield "failed" if self.failure is not None else "not sent"
        if self.result is not None:
            yield RESULT_STATES.get(self.result.state, self.result.state.lower())
        yield "unknown"

    def _known(self, name: str) -> str:
        """Return this attribute of the first source that has it, the latest one first; "" if none has."""
        stored, waiting = self.stored and self.stored[2], self.waiting and self.waiting[1]
        places = (self.running, *self.runs, stored, self.failure, self.result, waiting)
        return next((found for place in places if (found := getattr(place, name, ""))), "")

    def _of_runs(self) -> Iterator[LifeEvent]:
        for run, before in _in_order(self.runs):
            attempt = f"retry {run.retries}" if run.retries else ""
            if run.sent_at is not None and before is None:
                what = "sent" if run.due_at is None else "stored"
                yield LifeEvent(run.sent_at, what, f"for {run.queue}" if run.queue else "")
            if run.due_at is not None and before is None:
                yield LifeEvent(run.due_at, "due", ", ".join(filter(None, (attempt, DISPATCHED))))
            if run.fetched_at is not None:
                yield LifeEvent(run.fetched_at, "fetched", f"by {run.worker}{', again' if before else ''}")
            if run.started_at is not None:
                yield LifeEvent(run.started_at, "started", ", ".join(filter(None, (f"on {run.worker}", attempt))))
            yield LifeEvent(
                run.ended_at, run.outcome, run.error or ("" if run.started_at is not None else "without a run")
            )

    def _of_now(self) -> Iterator[LifeEvent]:
        if self.running is not None and self.state == "running":
            times = f", delivery {self.running.deliveries}" if self.running.deliveries > 1 else ""
            yield LifeEvent(self.running.since, "started", f"on {self.running.worker}{times}")
        if self.stored is not None:
            queue, item, _ = self.stored
            yield LifeEvent(item.put_at, "stored", f"in {queue.name}")
            what = {"delayed": "due", "in_flight": "its lease ends", "dead": "became a dead letter", "ready": "ready"}
            yield LifeEvent(item.at, what[item.state], item.reason)
        if self.waiting is not None:
            place, message = self.waiting
            where = f"in a worker, which fetched it from {place}" if self.is_fetched else f"in {place}"
            yield LifeEvent(message.since, "waits", where if self.is_fetched else f"{where} for {message.waits_for}")

    def _of_records(self) -> Iterator[LifeEvent]:
        for action in self.actions:
            yield LifeEvent(action.at, f"{action.verb} by {action.user}", action.detail)
        failed = self.failure
        if failed is not None:
            same = any(abs(run.ended_at - failed.failed_at) < SAME for run in self.runs)
            yield LifeEvent(failed.failed_at, "failure kept" if same else failed.kind, failed.error)
        result = self.result
        if result is not None and result.done_at is not None:
            yield LifeEvent(result.done_at, f"result {result.state}")


def task_life(access: Access, id_: str) -> TaskLife:
    """Return what is known of a task. Each source has a timeout, and one that cannot be read does not hide the others.

    Raises InvalidNameError for an invalid id, and StoreError if Redis cannot be reached.
    """
    check_id(id_)
    monitor = access.monitor
    life = TaskLife(id_, access.inspector.now())
    life.running = life.look_at("running tasks", lambda: monitor.workers.find_running(id_), "no worker reports it")
    life.runs = life.look_at("runs", lambda: monitor.runs.get(id_), NO_RUNS) or ()
    life.stored = life.look_at("delayed tasks and dead letters", lambda: _stored(access, id_), "no entry has its id")
    life.failure = life.look_at("failures", lambda: monitor.failures.get(id_), "none is kept")
    life.actions = life.look_at("audit", lambda: _actions(access, id_), NO_AUDIT) or ()
    if access.app is None:
        for name in ("result backend", "Celery queues", "messages in flight"):
            life.sources.append(Source(name, known=False, note="needs the Celery app"))
    else:
        life.result = life.look_at("result backend", lambda: _result(access, id_), "it keeps no result")
        if life.running is None and not (life.runs and life.runs[0].outcome != "retried"):
            life.waiting = _waiting(access, life)
            if life.waiting is None:
                life.waiting = life.look_at("messages in flight", lambda: _fetched(access, life), NOT_FETCHED)
                life.is_fetched = life.waiting is not None
    life.message = message_of(life.stored and life.stored[1], life.waiting and life.waiting[1], life.failure)
    if life.state == "unknown" or (life.state == "failed" and life.failure is None and not life.runs):
        ended_at = None if life.result is None else life.result.done_at
        life.stop = life.look_at("steps after failures", lambda: stop_before(monitor.failures, id_, ended_at), NO_STOP)
    return life


def _stored(access: Access, id_: str) -> tuple[DelayQueue, Item, TaskEntry] | None:
    names = [known.name for known in access.catalog.listing(kind="delay", limit=MAX_DELAY_QUEUES).known]
    default = access.default_delay_queue
    for name in [default, *(name for name in names if name != default)] if default in names else names:
        queue = access.delay_queue(name)
        for entry_id in (id_, retry_id(id_)):
            item = queue.look(entry_id, max_bytes=MAX_RECORD)
            if item is not None:
                return queue, item, task_of(item)
    return None


def _actions(access: Access, id_: str) -> list[AuditLine]:
    found = Audit(access.catalog.client, access.catalog.prefix).last(CHUNK)
    return [action for action in found if any(subject.id == id_ for subject in action.subjects)]


def _result(access: Access, id_: str) -> ResultRecord | None:
    records = access.result_records
    if records is None:
        raise ConfigurationError("not read: only results in Redis can be read without the risk to unpickle them")
    return records.tasks([id_]).get(id_)


def _waiting(access: Access, life: TaskLife) -> tuple[str, WaitingMessage] | None:
    """Search the queues of the task, or a few; append what was searched to the sources."""
    name, looked, searched = "Celery queues", 0, 0
    ends = monotonic() + SEARCH_SECONDS
    try:
        queues = [life.queue] if life.queue else _queues(access)
        for queue in queues:
            page = Messages(access, queue, Conditions(id_prefix=life.id)).page(None, 1)
            looked, searched = looked + page.looked, searched + 1
            found = next((message for message in page.items if message.id == life.id), None)
            if found is not None:
                life.sources.append(Source(name, known=True))
                return queue, found
            if monotonic() > ends:
                break
        note = f"not among the next {looked:,} messages of {', '.join(queues[:searched]) or 'no queue'}"
    except ConfigurationError as error:
        note = f"not searched: {error}"
    except (RedisQueueError, OperationalError) as error:
        note = f"cannot be read: {hide_secrets(str(error))}"
    life.sources.append(Source(name, known=False, note=note))
    return None


def _fetched(access: Access, life: TaskLife) -> tuple[str, WaitingMessage] | None:
    page = FetchedList(access, Conditions(id_prefix=life.id)).page(None, 1, most=MAX_FETCHED)
    return next(((row.queue, row.message) for row in page.items if row.id == life.id), None)


def _queues(access: Access) -> list[str]:
    rows = access.celery_queues.overview(limit=MAX_CELERY_QUEUES).rows if access.celery_queues else []
    return [row.name for row in rows if row.ready]


Doing = Literal["delayed", "waited", "prefetched", "ran"]

MAX_PHASES: Final = 50
"""Ten runs with four phases each, and what it does now."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What a task was *doing* for some *seconds*. It *lasts* if it has not ended."""

    doing: Doing
    begins_at: datetime
    seconds: float
    lasts: bool = False

    @property
    def text(self) -> str:
        """The phase as people read it."""
        return f"{self.doing} {span_text(self.seconds, parts=1)}{' so far' if self.lasts else ''}"


def phases(life: TaskLife) -> list[Phase]:
    """Return the phases of a task in order. Those whose begin or end is unknown are left out.

    Times come from several clocks: a phase that ended before it began is left out, too.
    """
    found = [phase for run, before in _in_order(life.runs) for phase in _of_run(run, before)]
    return [*found, *_of_now(life)][-MAX_PHASES:]


def _in_order(runs: Sequence[Run]) -> Iterator[tuple[Run, Run | None]]:
    """Yield each run, the first one first, with the one before it if both are of one message, which came back."""
    before: Run | None = None
    for run in reversed(runs):
        is_same = before is not None and run.sent_at is not None and _sent(run) == _sent(before)
        yield run, before if is_same else None
        before = run


def _sent(run: Run) -> tuple[datetime | None, datetime | None, int]:
    return run.sent_at, run.due_at, run.retries


def _of_run(run: Run, before: Run | None) -> Iterator[Phase]:
    sent = run.sent_at if run.due_at is None else run.due_at
    # A message that came back has waited since the run before it ended.
    if before is not None:
        sent = before.ended_at
    steps: Sequence[tuple[Doing, datetime | None]] = (
        ("delayed", None if run.due_at is None or before is not None else run.sent_at),
        ("waited", sent),
        ("prefetched", run.fetched_at),
        ("ran", run.started_at),
    )
    yield from _between([*steps, ("ran", run.ended_at if run.started_at is not None else None)])


def _of_now(life: TaskLife) -> Iterator[Phase]:
    if life.state == "running" and life.running is not None:
        yield from _between([("ran", life.running.since), ("ran", life.at)], lasts=True)
    elif life.state in ("waiting", "fetched") and life.waiting is not None:
        yield from _between([("waited", life.waiting[1].since), ("waited", life.at)], lasts=True)
    elif life.state == "delayed" and life.stored is not None:
        yield from _between([("delayed", life.stored[1].put_at), ("delayed", life.at)], lasts=True)


def _between(steps: Iterable[tuple[Doing, datetime | None]], *, lasts: bool = False) -> Iterator[Phase]:
    """Yield the phase from each known step to the next one."""
    known = [(doing, at) for doing, at in steps if at is not None]
    for (doing, begins_at), (_, ends_at) in pairwise(known):
        seconds = (ends_at - begins_at).total_seconds()
        if seconds >= 0:
            yield Phase(doing, begins_at, seconds, lasts)
