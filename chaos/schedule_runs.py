"""Runs of schedules: record them in a history, and find broken promises there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from chaos.holds import now_ms
from redis_queue.celery.message.headers import CALL
from redis_queue.schedules.state import Event as ScheduleEvent
from redis_queue.schedules.state import State
from redis_queue.validation.history import Event

RUN: Final = "run:"
"""Prefix of the ids of the runs: name of the schedule, due time in ms, and the call of the message follow."""

STANDS: Final = "stands:"
"""Prefix of the ids of the final states: the name of the schedule follows."""


def is_schedule(event: Event) -> bool:
    """Return whether *event* is about a run or a state of a schedule."""
    return event.id.startswith((RUN, STANDS))


def ran(request: Any) -> list[Event]:
    """Return the events of a run that begins: as a message that was sent for its due time, and as a run."""
    due = round(datetime.fromisoformat(request.scheduled_for).timestamp() * 1000)
    label, at = f"{request.schedule}@{due}", now_ms()
    return [
        Event("put", "ok", label, due=due),
        Event("claim", "ok", label, at=at),
        Event("execute", "ok", label),
        Event("ack", "invoke", label),
        Event("run", "ok", f"{RUN}{label}:{getattr(request, CALL)}", at=at, due=due),
    ]


def stands(name: str, every: int, state: State, events: Sequence[ScheduleEvent]) -> list[Event]:
    """Return the final *state* of a schedule: its first due time and the next one, and how many it sent and skipped.

    *events* are its last ones: which due times were skipped, and so are known not to have run.
    """
    lane, first = every, state.since + every
    found = [Event("stands", "ok", f"{STANDS}{name}", state.runs, first, state.due, state.skipped, lane)]
    skipped = (event for event in events if event.kind == "skipped")
    return found + [Event("skip", "ok", f"{STANDS}{name}", event.count, event.due, event.until) for event in skipped]


Broken = Iterator[tuple[str, str, list[Event]]]


def broken_schedules(events: Sequence[Event]) -> Broken:
    """Yield each broken promise with its schedule, and the events that show it.

    * Once: of one due time, no two messages run.
    * In step: due times are whole intervals after the first one.
    * Accounted for: each due time from the first one to before the next one has run or is counted as skipped; what has
      run was counted as sent, and what an event calls skipped has not run.
    """
    runs: dict[str, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    states: dict[str, Event] = {}
    skips: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        name = event.id.partition(":")[2].partition("@")[0]
        if event.op == "run":
            runs[name][event.due].append(event)
        elif event.op == "stands":
            states[name] = event
        elif event.op == "skip":
            skips[name].append(event)
    for name, dues in runs.items():
        for found in dues.values():
            if len({event.id for event in found}) > 1:
                yield "two runs of one due time", name, found
        if name not in states:
            yield "ran without a schedule", name, next(iter(dues.values()))
    for name, state in states.items():
        yield from _unaccounted(name, state, runs[name], skips[name])


def _unaccounted(name: str, state: Event, runs: dict[int, list[Event]], skips: Sequence[Event]) -> Broken:
    first, after, every = state.at, state.due, state.lane
    grid = range(first, after, every)
    if (after - first) % every or any(due not in grid for due in runs):
        yield "out of step", name, [state, *(found[0] for due, found in runs.items() if due not in grid)]
    if len(grid) != state.claim + state.deliveries:
        yield "missed and unsaid", name, [state]
    if len(runs) != state.claim:
        yield "sent and did not run", name, [state]
    for skip in skips:
        again = [due for due in runs if skip.at <= due <= skip.due]
        if len(again) + skip.claim > len(range(skip.at, skip.due + 1, every)):
            yield "skipped and ran", name, [skip, *(runs[due][0] for due in again)]
