"""States of workers, by the age and the content of their last reports; without a broadcast and without Celery.

Pages, commands, metrics and the probe take states, thresholds and severities from here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from redis_queue.basics.options import counted
from redis_queue.basics.times import monotonic, span_text
from redis_queue.monitor.model import RunningTask, WorkerRow
from redis_queue.monitor.monitor import SEEN_MS, Workers
from redis_queue.store.connection import Client
from redis_queue.store.scripts import Scripts, now_ms

State = Literal["alive", "busy", "stopping", "stuck", "silent", "lost", "missing"]

Severity = Literal["good", "warning", "bad"]

IN_LOOP: Final = "solo"
"""The pool that runs tasks in the event loop of the worker."""

SILENT_AFTER: Final = 5.0
"""Seconds without a report after which a worker is silent; it writes one each second."""

BAD_AFTER: Final = 15.0
"""Seconds without a report after which its silence is bad."""

LOST_AFTER: Final = SEEN_MS / 1000
"""Seconds without a report after which a worker is lost."""

STUCK_AFTER: Final = 60.0
"""Seconds without a turn of its event loop after which a worker is stuck, unless the caller chooses."""

NEXT_REPORT: Final = 2.0
"""Seconds to wait for the next report of a worker that leaves messages waiting; it writes one each second."""

TAKEN_WITHIN: Final = 0.2
"""Seconds after which a worker that waits for messages has taken a new one, and counts it."""

MAX_NAMED: Final = 3
"""Maximum number of tasks that the state of a lost worker names."""

_PROBLEMS: Final[Sequence[State]] = ("stuck", "silent", "lost")

_POLL: Final = 0.1

LISTED: Final[Sequence[State]] = ("alive", "busy", "stopping", *_PROBLEMS)
"""The states of workers in lists: all but that of an unknown one."""

HEALTHY: Final[Sequence[State]] = ("alive", "busy", "stopping")


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The state of the worker that wrote *row* *age* seconds ago, the reason, and how bad that is."""

    row: WorkerRow
    age: float
    state: State
    reason: str

    @property
    def severity(self) -> Severity:
        """How bad the state is."""
        if self.state in ("alive", "busy"):
            return "good"
        return "warning" if self.state == "stopping" or (self.state == "silent" and self.age <= BAD_AFTER) else "bad"


@dataclass(frozen=True, slots=True)
class Liveness:
    """The state of a worker, the reason, and whether the worker should go on.

    alive: it reports, and its event loop turns. busy: the same, and it runs tasks. stopping: it shuts down. stuck: it
    reports, but works no longer. silent: it did not report for some seconds. lost: it did not report for a minute, and
    did not say that it leaves. missing: it is unknown. *waiting* counts the messages in its queues, None if it is
    unknown.
    """

    worker: str
    state: State
    reason: str
    healthy: bool = False
    seen_age: float | None = None
    loop_age: float | None = None
    settled_age: float | None = None
    busy: int = 0
    waiting: int | None = None


def liveness(
    client: Client, prefix: str, worker: str, stuck_after: float, *, next_report: float = NEXT_REPORT
) -> Liveness:
    """Return the state of *worker*; it is unhealthy if nothing happens for *stuck_after* seconds. Raises StoreError.

    If it only leaves messages waiting, wait up to *next_report* seconds for its next report: they may be new.
    """
    scripts, workers, deadline = Scripts(client), Workers(client, prefix), monotonic() + next_report
    began = now_ms(scripts) / 1000
    while True:
        row = workers.row(worker, lost=True)
        if row is None:
            return Liveness(worker, "missing", "no worker has reported under this name within the last hour")
        age = age_of(row, now_ms(scripts) / 1000)
        waiting = _waiting(scripts, row.lists) if row.lists else None
        state, reason = _state(row, age, waiting, stuck_after)
        by_messages = state == "stuck" and _state(row, age, None, stuck_after)[0] == "alive"
        if not by_messages or row.seen_at.timestamp() > began + TAKEN_WITHIN or monotonic() > deadline:
            if state == "lost":
                reason = lost_text(row, age, workers.running_of(worker))
            healthy = state in HEALTHY or (state == "silent" and age <= stuck_after)
            return Liveness(worker, state, reason, healthy, age, row.loop_age, row.settled_age, row.busy, waiting)
        time.sleep(_POLL)


def worker_states(workers: Workers, part: str = "") -> list[WorkerState]:
    """Return the states of all workers whose names contain *part*, lost ones too: problems first, then by name.

    It reads each report once. Raises StoreError.
    """
    rows = workers.rows(part=part, lost=True)
    now = workers.now().timestamp()
    found = [WorkerState(row, age, *state_of(row, age)) for row in rows for age in (age_of(row, now),)]
    order = {state: number for number, state in enumerate(_PROBLEMS)}
    return sorted(found, key=lambda one: (order.get(one.state, len(order)), one.row.name))


def with_tasks(workers: Workers, states: Sequence[WorkerState]) -> list[WorkerState]:
    """Return *states*; the reasons of lost workers name the tasks that they ran, by their last reports.

    Raises StoreError.
    """

    def reason(one: WorkerState) -> str:
        return lost_text(one.row, one.age, workers.running_of(one.row.name)) if one.state == "lost" else one.reason

    return [replace(one, reason=reason(one)) for one in states]


def age_of(row: WorkerRow, now: float) -> float:
    """Return the seconds since the report, at *now* in seconds since the epoch."""
    return max(0.0, now - row.seen_at.timestamp())


def state_of(row: WorkerRow, age: float) -> tuple[State, str]:
    """Return the state of a worker by its last report alone, *age* seconds old, and the reason."""
    return _state(row, age, None, STUCK_AFTER)


def lost_text(row: WorkerRow, age: float, tasks: Sequence[RunningTask] = ()) -> str:
    """Return when a lost worker was seen last, and what it ran then."""
    ran = [f"{task.task} for {span_text((row.seen_at - task.since).total_seconds())}" for task in tasks[:MAX_NAMED]]
    more = max(row.busy, len(tasks)) - len(ran)
    others = f"{more:,} more" if ran else counted(more, "task")
    texts = " and ".join(filter(None, (", ".join(ran), others if more else "")))
    return f"last seen {span_text(age)} ago; it ran {texts or 'nothing'}"


def _state(row: WorkerRow, age: float, waiting: int | None, stuck_after: float) -> tuple[State, str]:
    if age > LOST_AFTER:
        return "lost", lost_text(row, age)
    silent = age > min(SILENT_AFTER, stuck_after)
    if stuck := _stuck(row, 0.0 if silent else age, waiting, stuck_after):
        return "stuck", stuck
    if silent:
        return "silent", f"silent for {span_text(age)}"
    if row.busy or row.stopping:
        runs = f"it runs {counted(row.busy, 'task')}"
        return ("stopping", f"it shuts down; {runs}") if row.stopping else ("busy", runs)
    limited = f"rate limits hold {row.limited:,} of its tasks back"
    return "alive", limited if row.limited else "it waits for messages"


def _stuck(row: WorkerRow, age: float, waiting: int | None, stuck_after: float) -> str:
    """Return why a worker works no longer, by a report *age* seconds ago; "" if it works."""
    if row.keeper is False:
        return "its keeper is dead, so other workers will take its tasks"
    loop_age = (row.loop_age or 0.0) + age
    if row.loop_age is not None and loop_age > stuck_after and not (row.pool == IN_LOOP and row.busy):
        return f"its event loop has not turned for {span_text(loop_age)}"
    # A worker without a settled message has waited since its start.
    settled = row.settled_age if row.settled_age is not None else (row.seen_at - row.started_at).total_seconds()
    rests = not (row.busy or row.stopping or row.limited)
    if waiting and rests and settled + age > stuck_after:
        return f"{counted(waiting, 'waiting message')}, and it has settled nothing for {span_text(settled + age)}"
    return ""


def _waiting(scripts: Scripts, lists: Sequence[str]) -> int:
    calls = [scripts.read_call("LLEN", name.encode(errors="replace")) for name in lists]
    return sum(int(reply()) for reply in scripts.each(calls))
