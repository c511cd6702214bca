"""Liveness of a worker, for probes: by its last report, without a broadcast and without Celery."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from redis_queue.basics.times import span_text
from redis_queue.monitor.model import WorkerRow
from redis_queue.monitor.monitor import Workers
from redis_queue.store.connection import Client
from redis_queue.store.scripts import Scripts, now_ms

State = Literal["alive", "busy", "stopping", "stuck", "missing"]

IN_LOOP: Final = "solo"
"""The pool that runs tasks in the event loop of the worker."""

SILENT: Final = 60.0
"""Seconds of silence after which a worker is stuck, unless the caller chooses."""

NEXT_REPORT: Final = 2.0
"""Seconds to wait for the next report of a worker that leaves messages waiting; it writes one each second."""

TAKEN_WITHIN: Final = 0.2
"""Seconds after which a worker that waits for messages has taken a new one, and counts it."""

_POLL: Final = 0.1

HEALTHY: Final[Sequence[State]] = ("alive", "busy", "stopping")


@dataclass(frozen=True, slots=True)
class Liveness:
    """The state of a worker, and the reason.

    alive: it reports, and its event loop turns. busy: the same, and it runs tasks. stopping: it shuts down. stuck: it
    reports, but works no longer. missing: it does not report. *waiting* counts the messages in its queues, None if it
    is unknown.
    """

    worker: str
    state: State
    reason: str
    seen_age: float | None = None
    loop_age: float | None = None
    settled_age: float | None = None
    busy: int = 0
    waiting: int | None = None

    @property
    def healthy(self) -> bool:
        """Whether the worker should go on."""
        return self.state in HEALTHY


def liveness(
    client: Client, prefix: str, worker: str, stuck_after: float, *, next_report: float = NEXT_REPORT
) -> Liveness:
    """Return the state of *worker*; it is stuck if nothing happens for *stuck_after* seconds. Raises StoreError.

    If it only leaves messages waiting, wait up to *next_report* seconds for its next report: they may be new.
    """
    scripts, workers, deadline = Scripts(client), Workers(client, prefix), time.monotonic() + next_report
    began = now_ms(scripts) / 1000
    while True:
        row = workers.row(worker)
        if row is None:
            return Liveness(worker, "missing", "no report within the last minute")
        seen_at = row.seen_at.timestamp()
        seen_age = max(0.0, now_ms(scripts) / 1000 - seen_at)
        waiting = _waiting(scripts, row.lists) if row.lists else None
        state, reason = _state(row, seen_age, waiting, stuck_after)
        by_messages = state == "stuck" and _state(row, seen_age, None, stuck_after)[0] == "alive"
        if not by_messages or seen_at > began + TAKEN_WITHIN or time.monotonic() > deadline:
            return Liveness(worker, state, reason, seen_age, row.loop_age, row.settled_age, row.busy, waiting)
        time.sleep(_POLL)


def state_of(row: WorkerRow, seen_age: float) -> tuple[State, str]:
    """Return the state of a worker by its report alone, and the reason; 60 s of silence are too many."""
    return _state(row, seen_age, None, SILENT)


def _state(row: WorkerRow, seen_age: float, waiting: int | None, stuck_after: float) -> tuple[State, str]:
    if seen_age > stuck_after:
        return "missing", f"no report for {span_text(seen_age)}"
    if row.keeper is False:
        return "stuck", "its keeper is dead, so other workers will take its tasks"
    silent = row.loop_age is not None and row.loop_age + seen_age > stuck_after
    if silent and not (row.pool == IN_LOOP and row.busy):
        return "stuck", f"its event loop is silent for {span_text(row.loop_age)}"
    if row.busy or row.stopping:
        runs = f"it runs {row.busy:,} tasks"
        return ("stopping", f"it shuts down; {runs}") if row.stopping else ("busy", runs)
    # A worker without a settled message has waited since its start.
    settled = row.settled_age if row.settled_age is not None else (row.seen_at - row.started_at).total_seconds()
    if waiting and not row.limited and settled + seen_age > stuck_after:
        return "stuck", f"{waiting:,} messages wait, and it has settled nothing for {span_text(settled)}"
    limited = f"rate limits hold {row.limited:,} of its tasks back"
    return "alive", limited if row.limited else "it waits for messages"


def _waiting(scripts: Scripts, lists: Sequence[str]) -> int:
    calls = [scripts.read_call("LLEN", name.encode(errors="replace")) for name in lists]
    return sum(int(reply()) for reply in scripts.each(calls))
