"""Activity: what a worker did since its last report, added up in memory."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from redis_queue.celery.message.attempt import ETA, SENT
from redis_queue.histogram import BOUNDS, BUCKETS, Histogram
from redis_queue.monitor.model import Outcome, Run, Series, Tally
from redis_queue.monitor.report import MOST_ENDED
from redis_queue.monitor.rows import MAX_TEXT
from redis_queue.times import from_ms

MOST_NOTED: Final = 100_000
"""Most runs that wait to be added up; older ones are forgotten if the reporting thread gets no time at all."""

MOST_SERIES: Final = 400
"""Most series that are added up while Redis is away; the runs of others are forgotten."""

MINUTE: Final = 60
"""Reports in the last minute."""

QueueOf = Callable[[Mapping[str, Any]], str]
"""Takes the delivery_info of a message; returns the name of its queue."""

OnFailure = Callable[[Any, Any, float | None], None]
"""Takes the request of a failed run, its exception as billiard passes it, and its seconds."""

_Ended = tuple[Mapping[str, Any], Outcome, float | None, float | None, int | None]


class Activity:
    """Notes how runs end (see :class:`redis_queue.celery.monitor.requests.Notes`), and adds them up when asked.

    Safe for one thread that calls :meth:`take` and any that note.
    """

    def __init__(self, queue_of: QueueOf, on_failure: OnFailure) -> None:
        self.queue_of = queue_of
        self._noted: deque[_Ended] = deque(maxlen=MOST_NOTED)
        self._note = self._noted.append
        self._sums: dict[tuple[Any, Any, Any], _Sum] = {}
        self._lately: deque[tuple[int, int]] = deque(maxlen=MINUTE)
        self.failed = on_failure
        #: When a run ended last, on the monotonic clock; None before the first one.
        self.ended_at: float | None = None
        #: Runs that ended since the worker started, and those of them that failed.
        self.executed = self.failures = 0

    def ended(self, request: Any, outcome: Outcome, seconds: float | None) -> None:
        """Note the end of a run."""
        self._note((request._request_dict, outcome, seconds, request.time_start, getattr(request._message, SENT, None)))

    @property
    def last_minute(self) -> tuple[int, int]:
        """Runs that ended, and failed, in about the last minute."""
        return sum(executed for executed, _ in self._lately), sum(failed for _, failed in self._lately)

    def take(self, worker: str, skew: float) -> tuple[dict[Series, Tally], list[Run]]:
        """Return the counts since they were written last, and up to :data:`MOST_ENDED` of the runs that ended since.

        *skew* is how many seconds the clock of Redis is ahead. Failed, retried and revoked runs come before others.
        Call :meth:`written` once another call has them, or they are returned again.
        """
        before = self.executed, self.failures
        usual: list[_Ended] = []
        unusual: list[_Ended] = []
        for _ in range(len(self._noted)):
            ended = self._noted.popleft()
            try:
                self._add(ended)
            except (TypeError, ValueError, KeyError, OverflowError):
                # A message may carry anything as exchange or routing key.
                continue
            chosen = usual if ended[1] == "succeeded" else unusual
            if len(chosen) < MOST_ENDED:
                chosen.append(ended)
        executed, failures = self.executed - before[0], self.failures - before[1]
        if executed:
            self.ended_at = time.monotonic()
        self._lately.append((executed, failures))
        now = time.time()
        runs = [self._run(ended, worker, now, skew) for ended in [*unusual, *usual][:MOST_ENDED]]
        tallies: dict[Series, Tally] = {}
        for total in self._sums.values():
            tallies[total.series] = tallies.get(total.series, Tally()) + total.tally()
        return tallies, [run for run in runs if run is not None]

    def written(self) -> None:
        """Forget the counts of the last :meth:`take`."""
        self._sums.clear()

    def _add(self, ended: _Ended) -> None:
        # This runs for each task, so it does little that is not counting.
        headers, outcome, seconds, started, sent = ended
        info = headers["delivery_info"]
        route = headers.get("task"), info["exchange"], info["routing_key"]
        total = self._sums.get(route)
        if total is None:
            if len(self._sums) >= MOST_SERIES:
                return
            total = self._sums[route] = _Sum(Series(str(route[0])[:MAX_TEXT], self.queue_of(info)[:MAX_TEXT]))
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
        if started is not None:
            total.add_start(started, sent, _seconds_of(headers[ETA]) if ETA in headers else None)

    def _run(self, ended: _Ended, worker: str, now: float, skew: float) -> Run | None:
        headers, outcome, seconds, started, sent = ended
        due = _seconds_of(headers.get(ETA))
        # The end is not noted: it costs a call of the clock for each run.
        at = started + seconds if started is not None and seconds is not None else now
        texts = {name: _text(headers.get(key)) for name, key in _TEXTS.items()}
        try:
            return Run(
                id=texts["id"],
                task=texts["task"],
                queue=self.queue_of(headers["delivery_info"]),
                worker=worker,
                outcome=outcome,
                ended_at=_time(min(at, now) + skew),
                started_at=None if started is None else _time(started + skew),
                sent_at=None if sent is None else _time(sent / 1000),
                due_at=None if due is None else _time(due),
                retries=_count(headers.get("retries")),
                parent=texts["parent"],
                root=texts["root"],
                group=texts["group"],
            )
        except (ValueError, TypeError, OverflowError):
            return None


_TEXTS: Final = {"id": "id", "task": "task", "parent": "parent_id", "root": "root_id", "group": "group"}


@dataclass(slots=True)
class _Times:
    counts: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        # The clocks of two hosts may differ.
        if seconds > 0:
            self.seconds += seconds
        self.counts[bisect_left(BOUNDS, seconds)] += 1


@dataclass(slots=True)
class _Sum:
    """The counts of a Tally, which are added up."""

    series: Series
    executed: int = 0
    failed: int = 0
    retried: int = 0
    revoked: int = 0
    duration: _Times = field(default_factory=_Times)
    waiting: _Times = field(default_factory=_Times)
    lateness: _Times = field(default_factory=_Times)

    def add_start(self, started: float, sent: int | None, due: float | None) -> None:
        if due is not None:
            self.lateness.add(started - due)
        if sent is not None or due is not None:
            self.waiting.add(started - max((sent or 0) / 1000, due or 0.0))

    def tally(self) -> Tally:
        times = (Histogram(tuple(of.counts), of.seconds) for of in (self.duration, self.waiting, self.lateness))
        return Tally(self.executed, self.failed, self.retried, self.revoked, *times)


def _seconds_of(eta: Any) -> float | None:
    if not isinstance(eta, str) or len(eta) > MAX_TEXT:
        return None
    try:
        at = datetime.fromisoformat(eta)
        return at.timestamp() if at.tzinfo is not None else None
    except (ValueError, OverflowError, OSError):
        return None


def _time(seconds: float) -> datetime:
    return from_ms(seconds * 1000)


def _text(found: Any) -> str:
    return found[:MAX_TEXT] if isinstance(found, str) else ""


def _count(found: Any) -> int:
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 1 << 31 else 0
