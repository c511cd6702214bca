"""Activity: what a worker did since its last report, added up in memory."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Retry
from celery.utils.serialization import UnpickleableExceptionWrapper

from redis_queue.basics.histogram import Durations
from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import from_ms, iso_time, monotonic
from redis_queue.celery.message.body import retries_in
from redis_queue.celery.message.headers import ETA, SCHEDULE, SENT
from redis_queue.monitor.failure_rows import name_of
from redis_queue.monitor.model import Outcome, Run, Series, Tally
from redis_queue.monitor.report import MAX_ENDED, OTHER
from redis_queue.monitor.rows import MAX_RAW, MAX_TEXT, cut

logger = logger_of(__name__)

SLOWEST: Final = 3
"""Slowest runs of a task that one report shows, besides the first one."""

MAX_TASKS: Final = 100
"""Maximum number of tasks whose runs are compared for one report; successes of others are not kept."""

_FURTHER, _FIRST, _SLOWEST, _UNUSUAL = range(4)
"""What decides which runs are kept if there are too many: first those that did not succeed."""

_Fields = dict[str, Any]
"""A run whose times are seconds."""

_Timed = tuple[float, int, _Fields]
"""Seconds, number, and run."""

_Ranked = tuple[int, float, int, _Fields]

_OWN_TIMES: Final = ("ended_at", "started_at", "fetched_at")
"""The times of a run by the clock of its worker."""

MAX_SERIES: Final = 400
"""Maximum number of series that are added up until they are written; runs of others are counted as "(other)"."""

MAX_SCHEDULE_ENDS: Final = 10_000
"""Maximum number of ended runs of schedules that wait to be reported."""

MINUTE: Final = 60.0

FETCHED: Final = "redis_queue_fetched"
"""Attribute of a message: when the worker got it, in seconds by its clock."""

QueueOf = Callable[[Mapping[str, Any]], str]
"""Takes the delivery_info of a message; returns the name of its queue."""


class Sample:
    """Holds up to :data:`MAX_ENDED` runs of a report: those that did not succeed first, then some of each task.

    Of each task it holds the first run that succeeded and the :data:`SLOWEST` slowest ones: a task that runs often, or
    slowly, leaves room for the others. Safe for threads.
    """

    def __init__(self) -> None:
        # As that of Activity.
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._taken: list[_Ranked] = []
        self._reset()

    def _reset(self) -> None:
        self._unusual: list[_Timed] = []
        self._first: dict[Any, _Timed] = {}
        self._slowest: dict[Any, list[_Timed]] = {}
        # What a run must take longer than to belong to the sample, for each task; and for tasks without runs.
        self._least: dict[Any, float] = {}
        self._least_of_others = -1.0

    def wants(self, task: Any, outcome: Outcome, seconds: float | None) -> bool:
        """Return whether a run belongs to the sample."""
        return outcome != "succeeded" or (seconds or 0.0) > self._least.get(task, self._least_of_others)

    def add(self, task: Any, run: _Fields, seconds: float | None) -> None:
        """Add a *run* of *task*, in the place of one that matters less."""
        with self._lock:
            found = seconds or 0.0, next(self._numbers), run
            if run["outcome"] != "succeeded":
                _push(self._unusual, found, MAX_ENDED)
            elif task in self._first:
                slowest = self._slowest.setdefault(task, [])
                _push(slowest, found, SLOWEST)
                self._least[task] = slowest[0][0] if len(slowest) == SLOWEST else -1.0
            elif len(self._first) < MAX_TASKS:
                self._first[task], self._least[task] = found, -1.0
                if len(self._first) == MAX_TASKS:
                    self._least_of_others = math.inf

    def take(self, skew: float) -> list[Run]:
        """Return the runs that are not :meth:`written`, in the order of their ends.

        *skew* is how many seconds the clock of Redis is ahead.
        """
        with self._lock:
            unusual, first, slowest = self._unusual, self._first, self._slowest
            self._reset()
        ranked: list[_Ranked] = [(_UNUSUAL, *found) for found in unusual]
        for task, found in first.items():
            runs = sorted([found, *slowest.get(task, ())], reverse=True)
            ranks = (_SLOWEST if run is runs[0] else _FIRST if run is found else _FURTHER for run in runs)
            ranked += ((rank, *run) for rank, run in zip(ranks, runs, strict=True))
        self._taken = heapq.nlargest(MAX_ENDED, [*self._taken, *ranked])
        return [_made(run, skew) for *_, run in sorted(self._taken, key=_number)]

    def written(self) -> None:
        """Forget what the last :meth:`take` returned."""
        self._taken.clear()


def _push(heap: list[_Timed], found: _Timed, most: int) -> None:
    if len(heap) < most:
        heapq.heappush(heap, found)
    else:
        heapq.heappushpop(heap, found)


def _number(found: _Ranked) -> int:
    return found[2]


def _made(found: _Fields, skew: float) -> Run:
    """Return a run as it is kept: with times of Redis."""
    seconds = {name: found[name] + skew for name in _OWN_TIMES if found[name] is not None}
    seconds |= {"sent_at": found["sent_at"], "due_at": _seconds_of(found["due_at"])}
    times = {name: None if at is None else from_ms(at * 1000) for name, at in seconds.items()}
    return Run(**{**found, **times})


class Activity:
    """Adds up how the runs of *worker* end, by *release* of the app; *failed* is called with each failed run first.

    With *arguments*, the runs that the next report shows have theirs.

    *failed* takes the request, its exception as billiard passes it, and its seconds. Both it and :meth:`ended` are
    called from the threads of the worker: they must be fast and never raise. The size of this object does not depend
    on the number of runs, nor on their arguments. Safe for threads.
    """

    def __init__(
        self,
        worker: str,
        queue_of: QueueOf,
        failed: Callable[[Any, Any, float | None], None],
        release: str = "",
        *,
        arguments: bool = True,
    ) -> None:
        self.queue_of = queue_of
        #: The release of the app.
        self.release = release
        self.failed = failed
        #: The runs that the next report shows.
        self.sample = Sample()
        #: When a run ended last, on the monotonic clock, by the last :meth:`look`; None before the first one.
        self.ended_at: float | None = None
        #: Runs that ended since the worker started, and those of them that failed.
        self.executed = self.failures = 0
        #: Runs that ended, and failed, in the last minute before the last :meth:`look`.
        self.last_minute = (0, 0)
        self._worker = worker
        self._texts = {**_TEXTS, **(_ARGUMENTS if arguments else {})}
        self._sums: dict[tuple[Any, Any, Any], _Sum] = {}
        #: Ended runs of schedules until they are reported: name, task id, outcome, and when they ended.
        self.schedule_ends: deque[tuple[str, str, Outcome, float]] = deque(maxlen=MAX_SCHEDULE_ENDS)
        self._looks: deque[tuple[float, int, int]] = deque([(monotonic(), 0, 0)])
        # A handler of a signal may interrupt a thread that holds it, and end a run.
        self._lock = threading.RLock()

    def ended(self, request: Any, outcome: Outcome, seconds: float | None, *, kept: bool = True) -> None:
        """Count the end of a run; it never raises, or the worker would not acknowledge the task.

        With *kept* the run may belong to the sample; that of a dead letter does not, which has its own record.
        """
        try:
            self._count(request, outcome, seconds)
            if outcome != "retried" and SCHEDULE in request.request_dict:
                self._add_schedule_end(request.request_dict, outcome)
            task = request.request_dict.get("task")
            if kept and self.sample.wants(task, outcome, seconds):
                self.sample.add(task, self._run(request, outcome), seconds)
        except Exception as error:  # noqa: BLE001 - as the docstring says
            logger.warning("cannot count a run: %s", type(error).__name__, extra={"action": "run_not_counted"})

    def discarded(self, message: Any) -> None:
        """Note that a *message* ended without a run, for the schedule that sent it; it never raises."""
        headers, properties = message.headers, message.properties
        if isinstance(headers, Mapping) and isinstance(properties, Mapping) and SCHEDULE in headers:
            self._add_schedule_end({"id": properties.get("correlation_id"), **headers}, "failed")

    def look(self) -> None:
        """Notice how many runs have ended so far: call it about once a second."""
        now, executed, failures = monotonic(), self.executed, self.failures
        if executed != self._looks[-1][1]:
            self.ended_at = now
        self._looks.append((now, executed, failures))
        while self._looks[0][0] < now - MINUTE:
            self._looks.popleft()
        _, before, failures_before = self._looks[0]
        self.last_minute = executed - before, failures - failures_before

    def take(self) -> dict[Series, Tally]:
        """Return the counts since the last call."""
        with self._lock:
            sums, self._sums = self._sums, {}
        tallies: dict[Series, Tally] = {}
        for total in sums.values():
            tallies[total.series] = tallies.get(total.series, Tally()) + total.tally()
        return tallies

    def _count(self, request: Any, outcome: Outcome, seconds: float | None) -> None:
        # This runs for each task, so it does little that is not counting.
        headers: Mapping[str, Any] = request.request_dict
        info = headers["delivery_info"]
        with self._lock:
            try:
                total = self._sums[headers["task"], info["exchange"], info["routing_key"]]
            except (KeyError, TypeError):
                total = self._add_series(headers.get("task"), info)
            if outcome == "revoked":
                total.revoked += 1
                return
            self.executed += 1
            total.executed += 1
            if outcome != "succeeded":
                failed = outcome == "failed"
                self.failures += failed
                total.failed += failed
                total.retried += not failed
            if seconds is not None:
                total.duration.add(seconds)
            if request.time_start is not None:
                total.add_start(request.time_start, getattr(request.message, SENT, None), headers.get(ETA))

    def _add_series(self, task: Any, info: Mapping[str, Any]) -> _Sum:
        route = task, info.get("exchange"), info.get("routing_key")
        # A message may carry anything as exchange or routing key.
        if len(self._sums) >= MAX_SERIES or not all(isinstance(part, str | None) for part in route):
            return self._sums.setdefault(_OTHER, _Sum(OTHER))
        found = _Sum(Series(str(task)[:MAX_TEXT], self.queue_of(info)[:MAX_TEXT]))
        self._sums[route] = found
        return found

    def _add_schedule_end(self, headers: Mapping[str, Any], outcome: Outcome) -> None:
        name, id_ = headers[SCHEDULE], headers.get("id")
        if isinstance(name, str) and isinstance(id_, str):
            self.schedule_ends.append((name, id_, outcome, time.time()))

    def _run(self, request: Any, outcome: Outcome) -> _Fields:
        # As little as possible: a better run may take its place before it is written.
        headers, message = request.request_dict, request.message
        sent = getattr(message, SENT, None)
        return {
            "queue": self.queue_of(headers["delivery_info"])[:MAX_TEXT],
            "worker": self._worker,
            "outcome": outcome,
            "ended_at": time.time(),
            "started_at": request.time_start,
            "sent_at": None if sent is None else sent / 1000,
            "due_at": _text(headers.get(ETA), MAX_TEXT + 1),
            "retries": retries_in(headers),
            "fetched_at": getattr(message, FETCHED, None),
            "error": "" if outcome == "succeeded" else error_of(request),
            "release": self.release,
            **{name: _text(headers.get(key), most) for name, (key, most) in self._texts.items()},
        }


_TEXTS: Final = {
    "id": ("id", MAX_TEXT),
    "task": ("task", MAX_TEXT),
    "parent": ("parent_id", MAX_TEXT),
    "root": ("root_id", MAX_TEXT),
    "group": ("group", MAX_TEXT),
}
"""The texts of a run: the header of each, and its maximum length."""

_ARGUMENTS: Final = {"args": ("argsrepr", MAX_RAW), "kwargs": ("kwargsrepr", MAX_RAW)}
"""Its arguments, longer than they are kept: a secret is recognized by its whole text."""

_OTHER: Final = ("", "", "")
"""Key of the runs that are counted together."""


@dataclass(slots=True)
class _Sum:
    """The counts of a Tally, which are added up."""

    series: Series
    executed: int = 0
    failed: int = 0
    retried: int = 0
    revoked: int = 0
    duration: Durations = field(default_factory=Durations)
    waiting: Durations = field(default_factory=Durations)
    lateness: Durations = field(default_factory=Durations)

    def add_start(self, started: float, sent: int | None, eta: Any) -> None:
        due = _seconds_of(eta)
        if due is not None:
            self.lateness.add(started - due)
            self.waiting.add(started - max((sent or 0) / 1000, due))
        elif sent is not None:
            self.waiting.add(started - sent / 1000)

    def tally(self) -> Tally:
        times = (of.sum() for of in (self.duration, self.waiting, self.lateness))
        return Tally(self.executed, self.failed, self.retried, self.revoked, *times)


def _seconds_of(eta: Any) -> float | None:
    at = iso_time(eta)
    return None if at is None else at.timestamp()


def _text(found: Any, most: int) -> str:
    return found[:most] if isinstance(found, str) else ""


def exception_name(error: object) -> str:
    """Return the name of the class of *error* as a traceback shows it."""
    if isinstance(error, UnpickleableExceptionWrapper):
        module, name = str(error.exc_module), str(error.exc_cls_name)
    else:
        module, name = str(type(error).__module__), type(error).__qualname__
    return name_of(name if module == "builtins" else f"{module}.{name}")


def text_of(error: object) -> str:
    """Return the text of *error*, of limited length; "" if its class cannot make one."""
    try:
        return cut(str(error), MAX_RAW)
    except Exception:  # noqa: BLE001 - code of the application
        return ""


def unwrapped(error: Any) -> Any:
    """Return the exception that *error*, as billiard passes it, stands for."""
    return error.exc if isinstance(error, ExceptionWithTraceback) else error


def error_of(request: Any) -> str:
    """Return name and text of the exception that ended the run of *request*, or for which it retries; "" for none."""
    error = getattr(request, "_error", None)
    if isinstance(error, Retry):
        # One that was raised in a child comes as a text if it cannot be pickled.
        error = error.exc or error.excs or error.message
    if error is None or isinstance(error, str):
        return cut(error or "", MAX_RAW)
    return cut(": ".join(filter(None, (exception_name(error), text_of(error)))), MAX_RAW)
