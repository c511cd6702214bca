"""Records of workers, running tasks, history, runs and failures: frozen dataclasses without I/O.

All texts come from Redis and may be hostile: readers limit their lengths. Times are those of the Redis server, unless
the text says otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple

from redis_queue.basics.histogram import NO_TIMES, Histogram

Outcome = Literal["succeeded", "failed", "retried", "revoked"]
"""How a run ended; "revoked" includes expired and terminated tasks."""


MIN_RUNS: Final = 20
"""Minimum number of runs that tell how long a task usually runs."""


class Series(NamedTuple):
    """A task and the queue from which it came; "(other)" for both if there are too many series."""

    task: str
    queue: str


class Tally(NamedTuple):
    """Counts of the runs of one series, or of several, within a time.

    *executed* counts all runs that ended, *failed* and *retried* are parts of it. A run that died with its process is
    retried if its message comes back; a task that becomes a dead letter then counts as one more run, which failed.
    *revoked* runs were never executed, or were terminated. *duration* is the run time of executed tasks. *waiting* is
    the time from when a message was sent until its task started; messages of producers without the extension are not
    in it. *lateness* is the time from when a delayed task was due until it started.
    """

    executed: int = 0
    failed: int = 0
    retried: int = 0
    revoked: int = 0
    duration: Histogram = NO_TIMES
    waiting: Histogram = NO_TIMES
    lateness: Histogram = NO_TIMES

    @property
    def ends(self) -> int:
        """How many tasks ended: a retry is not an end."""
        return self.executed - self.retried

    @property
    def share(self) -> float:
        """The share of failures among the ends."""
        return self.failed / self.ends if self.ends else 0.0

    def usual(self, share: float) -> float | None:
        """Return the seconds that this share of the runs did not exceed; None for fewer than :data:`MIN_RUNS` runs."""
        return self.duration.quantile(share) if self.duration.total >= MIN_RUNS else None

    def __add__(self, other: Tally) -> Tally:  # type: ignore[override]
        return Tally(*map(operator.add, self, other))


@dataclass(frozen=True, slots=True)
class Period:
    """The runs in the minute or hour that began *at*."""

    at: datetime
    tally: Tally


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """The last report of a worker, one each second.

    *busy* counts running tasks, *prefetched* those that it holds but has not started. *executed*, *failed*,
    *executed_per_minute* and *failed_per_minute* count since its start, and in the last minute. *memory* is the
    resident memory of its main process in bytes, 0 if unknown. *loop_age* and *settled_age* are the seconds since the
    last turn of its event loop and since it last settled a message, None without an event loop or before the first one.
    *keeper* tells whether its keeper process lives, None without leases. *held* is the number of messages that it holds
    of each queue. *lists* are the keys of its queues, if its broker is the Redis that keeps the reports. *limited*
    counts the tasks that rate limits hold back; they are not in *prefetched*. *stopping*: it shuts down. *release* is
    that of the app, "" if it is unknown.
    """

    name: str
    seen_at: datetime
    started_at: datetime
    host: str = ""
    pid: int = 0
    pool: str = ""
    concurrency: int = 0
    busy: int = 0
    prefetched: int = 0
    queues: Sequence[str] = ()
    executed: int = 0
    failed: int = 0
    executed_per_minute: int = 0
    failed_per_minute: int = 0
    memory: int = 0
    versions: Mapping[str, str] | None = None
    loop_age: float | None = None
    settled_age: float | None = None
    keeper: bool | None = None
    held: Mapping[str, int] | None = None
    lists: Sequence[str] = ()
    limited: int = 0
    stopping: bool = False
    release: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    """A release of the app, and when a worker reported it first and last; the last time may be a minute too early."""

    release: str
    first_at: datetime
    last_at: datetime


LeaseState = Literal["held", "lost", "none"]


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A task that *worker* runs since *since*, by its last report.

    *args* and *kwargs* are the shortened texts that the message carries. *deliveries* is 1, or more if the message came
    back. *lease* is "none" without leases.
    """

    id: str
    task: str
    queue: str
    worker: str
    since: datetime
    args: str = ""
    kwargs: str = ""
    deliveries: int = 1
    retries: int = 0
    lease: LeaseState = "none"
    parent: str = ""
    root: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a task that has ended, kept for a while.

    *sent_at* and *due_at* are None if the message does not tell. *fetched_at* is when its worker got the message.
    *started_at* is None if it never started. *error* is the exception with which it failed, or for which it retries,
    shortened. *release* is that of the app in its worker. *args* and *kwargs* are the start of its arguments, with
    likely secrets hidden; "" if its worker does not keep them.
    """

    id: str
    task: str
    queue: str
    worker: str
    outcome: Outcome
    ended_at: datetime
    started_at: datetime | None = None
    sent_at: datetime | None = None
    due_at: datetime | None = None
    retries: int = 0
    parent: str = ""
    root: str = ""
    group: str = ""
    fetched_at: datetime | None = None
    error: str = ""
    release: str = ""
    args: str = ""
    kwargs: str = ""


FailureKind = Literal["failed", "unregistered", "unreadable"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that failed, or a message that Celery discarded.

    *id* is the task's id; a random one for unreadable messages. *exception* is the name of its class, *message*
    its text, *traceback* a text. *body* is the packed message for a retry
    (:class:`redis_queue.celery.message.envelope.Envelope`); None if it was too large or unreadable. *size* is its
    length in bytes, 0 for None; lists leave out *traceback* and *body*. *attempts* counts the runs so far, this one
    included; 0 for a message that was discarded. *release* is that of the app in its worker.
    """

    id: str
    task: str
    queue: str
    worker: str
    failed_at: datetime
    kind: FailureKind = "failed"
    exception: str = ""
    message: str = ""
    traceback: str = ""
    args: str = ""
    kwargs: str = ""
    attempts: int = 1
    seconds: float | None = None
    body: bytes | None = None
    size: int = 0
    release: str = ""

    @property
    def error(self) -> str:
        """The exception and its text."""
        return ": ".join(filter(None, (self.exception, self.message)))


class FailureGroup(NamedTuple):
    """The failures of one task with one exception; "(other)" for both if there are too many groups."""

    task: str
    exception: str


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Number of kept failures of *group*, and the id of the last one. *first_at*: since when it has had failures."""

    group: FailureGroup
    count: int
    first_at: datetime
    last_at: datetime
    last_id: str


@dataclass(frozen=True, slots=True)
class Kept:
    """How many failures are kept, and for how long, as the last worker that wrote some was configured.

    *missed* counts all-time failures that were not kept because too many came at once; the last ones at *missed_at*.
    """

    most: int
    days: float
    missed: int = 0
    missed_at: datetime | None = None
