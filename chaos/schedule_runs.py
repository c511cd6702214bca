"""Runs of schedules: record them in a history, and find broken promises there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from chaos.holds import now_ms
from redis_queue.celery.message.headers import CALL
from redis_queue.schedules.state import Event as ScheduleEvent
from redis_queue.schedules.state import State
from redis_queue.validation.history import Event

RUN: Final = "due:"
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


@dataclass
class Story:
    """What a history tells of one schedule: its runs by due time, its final state, and what it skipped last."""

    runs: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    skips: list[Event] = field(default_factory=list)
    state: Event | None = None

    def add(self, event: Event) -> None:
        if event.op == "run":
            self.runs[event.due].append(event)
        elif event.op == "skip":
            self.skips.append(event)
        else:
            self.state = event


def broken_schedules(events: Iterable[Event]) -> Broken:
    """Yield each broken promise with its schedule, and the events that show it.

    * Once: of one due time, no two messages run.
    * In step: due times are whole intervals after the first one.
    * Accounted for: each due time from the first one to before the next one has run or is counted as skipped; what was
      counted as sent has run, and what an event calls skipped has not.
    """
    stories: dict[str, Story] = defaultdict(Story)
    for event in events:
        stories[event.id.partition(":")[2].partition("@")[0]].add(event)
    for name, story in stories.items():
        for found in story.runs.values():
            if len({event.id for event in found}) > 1:
                yield "two runs of one due time", name, found
        if story.state is None:
            yield "ran without a schedule", name, next(iter(story.runs.values()))
        else:
            yield from _unaccounted(name, story, story.state)


def _unaccounted(name: str, story: Story, state: Event) -> Broken:
    first, after, every = state.at, state.due, state.lane
    grid = range(first, after, every)
    astray = [found[0] for due, found in story.runs.items() if due not in grid]
    if (after - first) % every or astray:
        yield "out of step", name, [state, *astray]
    if len(grid) != state.claim + state.deliveries:
        yield "missed and unsaid", name, [state]
    if len(story.runs) != state.claim:
        yield "sent and did not run", name, [state]
    for skip in story.skips:
        again = [found[0] for due, found in story.runs.items() if skip.at <= due <= skip.due]
        if len(again) + skip.claim > len(range(skip.at, skip.due + 1, every)):
            yield "skipped and ran", name, [skip, *again]
