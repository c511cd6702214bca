"""Situation: what is read once of queues, workers, tasks, flows and servers, and the incidents that it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlencode

from kombu.exceptions import OperationalError

from redis_queue.admission.flows import OF_QUEUE
from redis_queue.admission.rules import FlowState, KeyState
from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.times import span_text
from redis_queue.delay.model import Dispatched
from redis_queue.doctor.finding import Finding, run_all
from redis_queue.doctor.server import PRESSING, servers
from redis_queue.errors import RedisQueueError, StoreError, StoreUnavailableError
from redis_queue.monitor.model import ReleaseRow, RunningTask, Series, Tally
from redis_queue.monitor.report import OTHER
from redis_queue.operate.access import Access
from redis_queue.operate.audit import Audit, AuditLine
from redis_queue.operate.inspector import FEW_SHARDS
from redis_queue.operate.items import MAX_READ, Letter
from redis_queue.operate.liveness import WorkerState, with_tasks, worker_states
from redis_queue.operate.queue_row import BROKEN, CeleryQueueRow, QueueRow, fault_text
from redis_queue.operate.schedules import ScheduleRow
from redis_queue.operate.schedules import look as look_at_schedules
from redis_queue.store.chunks import CHUNK

T = TypeVar("T")

MINUTES: Final = 60
"""Minutes of history in a situation, the current one included."""

MAX_QUEUES: Final = 300
"""Maximum number of queues of the store that are counted, those with few shards."""

MAX_USUAL: Final = 20
"""Maximum number of series whose usual run time is read."""

USUAL_HOURS: Final = 24

LONG: Final = 60.0
"""Seconds for which a task has run before its usual run time is read, and an entry was due before it is late."""

STOPPING: Final = ("flow-pause", "flow-set")
"""Verbs of the actions that stop a flow: by a pause, by a limit of 0."""

MAX_LETTER: Final = 64 * 1024
"""Maximum bytes of a dead letter that is read to tell its task."""

MAX_LOOKS: Final = 20
"""Maximum number of lost workers, of queues with dead letters, and of those with late entries, that are looked into."""


@dataclass(frozen=True)
class Situation:
    """What is known of a fleet *at* one time (of the server). All parts are plain data.

    *celery_queues* and *queues* are rows of queues, at most 300 of the store, *workers* the states of all that
    reported in the last hour, *releases* those of the app, *running* the tasks that have run for a second or more.
    *ended* are the counts of each series in each of the last :data:`MINUTES` minutes, *usual* the runs of the last day
    of those series that run for long now. *backlog* counts the tasks of each flow that wait for a place, *flows* are
    all flows, *stopped_keys* the keys that start nothing, with their flows, *pauses* the last action on each flow that
    starts nothing. *dead* tells when the first dead letter of a queue died, and the last one, *dispatchers* how many
    dispatchers the DelayQueue of tasks, and one with late entries, has (None: it never had one). *schedules* are those
    that may be wrong, *schedule_dispatchers* counts the dispatchers that send them, *refused_schedules* tells of each
    app which of its schedules are not stored, and why. *pressure* is what the doctor finds on the servers.
    *read_elsewhere* are the queues that workers consume by their answers, None if they were not asked. *unread* says
    of each part that cannot be read why.
    """

    at: datetime
    celery_queues: Sequence[CeleryQueueRow] = ()
    queues: Sequence[QueueRow] = ()
    workers: Sequence[WorkerState] = ()
    releases: Sequence[ReleaseRow] = ()
    running: Sequence[RunningTask] = ()
    ended: Mapping[Series, Sequence[Tally]] = field(default_factory=dict)
    usual: Mapping[Series, Tally] = field(default_factory=dict)
    backlog: Mapping[str, int] = field(default_factory=dict)
    flows: Sequence[FlowState] = ()
    stopped_keys: Sequence[tuple[str, KeyState]] = ()
    pauses: Mapping[str, AuditLine] = field(default_factory=dict)
    dead: Mapping[tuple[str, str], tuple[datetime, Letter]] = field(default_factory=dict)
    dispatchers: Mapping[str, int | None] = field(default_factory=dict)
    schedules: Sequence[ScheduleRow] = ()
    schedule_dispatchers: int | None = None
    refused_schedules: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    pressure: Sequence[Finding] = ()
    read_elsewhere: frozenset[str] | None = None
    unread: Mapping[str, str] = field(default_factory=dict)

    @LazyProperty
    def ended_by_task(self) -> dict[str, list[Tally]]:
        """The counts of each task in each minute, of all its queues."""
        tasks = grouped((series.task, minutes) for series, minutes in self.ended.items() if series != OTHER)
        return {task: [sum(same, Tally()) for same in zip(*found, strict=True)] for task, found in tasks.items()}

    @LazyProperty
    def readers(self) -> dict[str, list[WorkerState]]:
        """The workers that consume each Celery queue, without lost ones."""
        living = [worker for worker in self.workers if worker.state != "lost"]
        return grouped((queue, worker) for worker in living for queue in dict.fromkeys(worker.row.queues))

    @LazyProperty
    def stops(self) -> dict[str, FlowState]:
        """The flows that start nothing, by name: paused ones, and those with a limit of 0."""
        stops = (one for one in self.flows if one.paused or 0 in (one.limits.limit, one.limits.limit_each))
        return {state.name: state for state in stops}

    @LazyProperty
    def held_back(self) -> set[str]:
        """The flows of queues in which messages wait that a person has stopped, of all keys or of one; "": of tasks."""
        stopped = [state.name for state in self.stops.values() if state.waiting]
        stopped += (flow for flow, state in self.stopped_keys if state.waiting)
        return {flow if flow.startswith(OF_QUEUE) else "" for flow in stopped}

    @LazyProperty
    def rated(self) -> set[str]:
        """The flows of queues with a rate in which messages wait; "": of tasks."""
        limits = ((state, state.limits) for state in self.flows if state.waiting)
        rated = (state.name for state, limit in limits if limit.rate_ms or limit.rate_each_ms)
        return {flow if flow.startswith(OF_QUEUE) else "" for flow in rated}

    @LazyProperty
    def runs(self) -> dict[str, list[RunningTask]]:
        """The running tasks of each worker."""
        return grouped((task.worker, task) for task in self.running)

    @LazyProperty
    def held(self) -> Counter[str]:
        """How many messages of each Celery queue workers hold and have not started."""
        runs, found = Counter((task.worker, task.queue) for task in self.running), Counter[str]()
        for row in (worker.row for worker in self.workers if worker.state != "lost" and worker.row.prefetched):
            held = dict.fromkeys(row.queues, row.prefetched) if row.held is None else row.held
            for queue, count in held.items():
                found[queue] += min(row.prefetched, max(0, count - runs[row.name, queue]))
        return found

    @LazyProperty
    def as_usual(self) -> set[str]:
        """The workers with a task that has run for long, but not for longer than 95 % of its runs."""
        known = {series: tally.usual(0.95) or 0.0 for series, tally in self.usual.items()}
        return {
            task.worker
            for task in self.running
            if LONG <= self.age(task.since) <= known.get(Series(task.task, task.queue), 0.0)
        }

    def age(self, since: datetime) -> float:
        """Return how many seconds ago *since* was; 0 for a later time."""
        return max(0.0, (self.at - since).total_seconds())


def look(access: Access, read_elsewhere: frozenset[str] | None = None) -> Situation:
    """Return the situation of the queues of *access*. A part that cannot be read does not hide the others.

    The cost does not grow with the number of messages. Raises StoreUnavailableError if Redis cannot be reached.
    """
    found, unread = Situation(access.inspector.now(), read_elsewhere=read_elsewhere), dict[str, str]()
    for name, (what, read) in _PARTS.items():
        try:
            found = replace(found, **{name: read(access, found)})
        except StoreUnavailableError:
            raise
        except (RedisQueueError, OperationalError, *BROKEN) as error:
            unread[what] = fault_text(error)
    return replace(found, unread=unread)


def grouped(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for name, item in pairs:
        found.setdefault(name, []).append(item)
    return found


def _workers(access: Access, _: Situation) -> list[WorkerState]:
    workers = access.monitor.workers
    states = worker_states(workers)
    return [*with_tasks(workers, states[:MAX_LOOKS]), *states[MAX_LOOKS:]]


def _queues(access: Access, _: Situation) -> list[QueueRow]:
    known, _left_out = access.catalog.first(MAX_QUEUES, {("delay", access.default_delay_queue)})
    return access.inspector.queues(row for row in known if row.shards <= FEW_SHARDS)


def _celery_queues(access: Access, found: Situation) -> Sequence[CeleryQueueRow]:
    if access.celery_queues is None:
        return ()
    overview = access.celery_queues.overview(states=found.workers)
    if overview.error:
        raise StoreError(overview.error)
    return overview.rows


def _usual(access: Access, found: Situation) -> dict[Series, Tally]:
    """Return the runs of the last day of the tasks of which most runs take long now."""
    since = Counter(Series(row.task, row.queue) for row in found.running if found.age(row.since) >= LONG)
    history = access.monitor.history
    return {
        series: sum((hour.tally for hour in history.hours(USUAL_HOURS, [series])), Tally())
        for series, _ in since.most_common(MAX_USUAL)
    }


def _stopped_keys(access: Access, found: Situation) -> Iterator[tuple[str, KeyState]]:
    """Yield the keys that start nothing, with their flows."""
    of_keys, names = access.flows.of_keys, [state.name for state in found.flows if state.kind]
    for name, count in zip(names, of_keys.changes(names), strict=True):
        for state in of_keys.states(name, of_keys.changed(name) if count else []):
            if state.paused or state.own.get("limit") == 0:
                yield name, state


def _pauses(access: Access, found: Situation) -> dict[str, AuditLine]:
    """Return the last action that stopped each flow that starts nothing: those on single keys did not."""
    verbs = {name: STOPPING[0 if state.paused else 1] for name, state in found.stops.items()}
    lines = Audit(access.catalog.client, access.catalog.prefix).last(CHUNK) if verbs else []
    stopping = [line for line in lines if line.verb == verbs.get(line.queue) and not line.detail.startswith("key ")]
    return {line.queue: line for line in reversed(stopping)}


def _dead(access: Access, found: Situation) -> Iterator[tuple[tuple[str, str], tuple[datetime, Letter]]]:
    for row in _most([row for row in found.queues if row.dead], "dead"):
        queue = access.queue(row.kind, row.name)
        # A letter may be gone by now.
        first = queue.dead_letters(limit=1, max_bytes=0)
        last = queue.dead_letters(offset=row.dead - 1, limit=1, max_bytes=MAX_LETTER)
        if first and last:
            yield (row.kind, row.name), (first[0].died_at, Letter(queue, last[0]))


def _dispatchers(access: Access, found: Situation) -> Iterator[tuple[str, int | None]]:
    default = access.default_delay_queue
    late = [
        row
        for row in found.queues
        if row.kind == "delay"
        and (row.name == default or (row.oldest_at is not None and found.age(row.oldest_at) >= LONG))
    ]
    for row in _most(late, "ready"):
        log = access.delay_queue(row.name).dispatch_log
        seen = len(log.dispatchers())
        # The queues of code that claims entries itself have none, and never had one.
        yield row.name, seen if seen or row.name == default or log.totals() != Dispatched() else None


def _schedule_dispatchers(access: Access, found: Situation) -> int | None:
    return len(access.task_queue.dispatch_log.dispatchers()) if found.schedules else None


def _most(rows: Sequence[QueueRow], count: str) -> Sequence[QueueRow]:
    return sorted((row for row in rows if not row.error), key=lambda row: -getattr(row, count))[:MAX_LOOKS]


def _pressure(access: Access, _: Situation) -> list[Finding]:
    found = run_all(PRESSING, servers(access.catalog.client, access.catalog.prefix))
    return [finding for finding in found if finding.severity != "ok"]


_PARTS: Final[Mapping[str, tuple[str, Callable[[Access, Situation], Any]]]] = {
    "workers": ("the reports of workers", _workers),
    "releases": ("releases", lambda access, _: access.monitor.releases()),
    "celery_queues": ("Celery's queues", _celery_queues),
    "queues": ("the queues", _queues),
    "running": ("running tasks", lambda access, _: access.monitor.workers.running(limit=MAX_READ)),
    "ended": ("the history", lambda access, _: access.monitor.history.counts(MINUTES)),
    "usual": ("the history", _usual),
    "backlog": ("flows", lambda access, _: access.backlog.all()),
    "flows": ("flows", lambda access, _: access.flows.list()),
    "stopped_keys": ("keys of flows", lambda access, found: list(_stopped_keys(access, found))),
    "pauses": ("the audit", _pauses),
    "dead": ("dead letters", lambda access, found: dict(_dead(access, found))),
    "dispatchers": ("the counts of dispatchers", lambda access, found: dict(_dispatchers(access, found))),
    "schedules": ("schedules", lambda access, found: look_at_schedules(access, found.at)),
    "schedule_dispatchers": ("the counts of dispatchers", _schedule_dispatchers),
    "refused_schedules": ("schedules", lambda access, _: access.schedules.store.refused()),
    "pressure": ("the servers", _pressure),
}
"""The parts of a situation in the order in which they are read: what it is for people, and what reads it."""


Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that is wrong now with *subject*.

    *cause* is a sentence, *since* None if unknown, *hits* the number of tasks or messages that it keeps back or ends.
    *page* is the address of the page where it is mended, relative to that of the dashboard; *advice* says what to do.
    *kind* is the name of the rule.
    """

    subject: str
    severity: Severity
    cause: str
    advice: str
    page: str
    since: datetime | None = None
    hits: int = 0
    kind: str = ""

    @property
    def finding(self) -> Finding:
        """The incident as a finding of the doctor, whose errors are faults of settings and stored data."""
        return Finding(self.kind, "warning", self.cause, self.advice)


Rule = Callable[[Situation], Iterator[Incident]]


LIST_OF: Final = {"celery-queue": "queues", "queue": "queues", "flow": "flows", "schedule": "schedules"}
"""The page that lists what a page shows one of."""


def page_of(path: str, **parameters: str) -> str:
    """Return the address of a page of the dashboard; that of its list for a name that the page refuses."""
    # Other programs may have written names that are not printable.
    if not "".join(parameters.values()).isprintable():
        return LIST_OF.get(path, path)
    return f"{path}?{urlencode(parameters)}"


def waits_text(count: int, noun: str = "message") -> str:
    """Return how many messages wait."""
    return f"1 {noun} waits" if count == 1 else f"{count:,} {noun}s wait"


def tasks_text(now: Situation, runs: Sequence[RunningTask]) -> str:
    """Return the most frequent of running tasks: how many, for how long, and how long they usually take."""
    if not runs:
        return ""
    series, count = Counter(Series(task.task, task.queue) for task in runs).most_common(1)[0]
    first = min((task for task in runs if Series(task.task, task.queue) == series), key=lambda task: task.since)
    usual = usual_seconds(now, first)
    told = "" if usual is None else f", usually {span_text(usual, parts=1)}"
    times = f"{count:,} x " if count > 1 else ""
    return f"{times}{series.task} for up to {span_text(now.age(first.since), parts=1)}{told}"


def usual_seconds(now: Situation, task: RunningTask, share: float = 0.5) -> float | None:
    """Return the run time that this share of the runs of a task do not exceed; None if there are too few runs."""
    return now.usual.get(Series(task.task, task.queue), Tally()).usual(share)
