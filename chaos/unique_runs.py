"""Calls and runs of unique tasks: record them in a history, and find broken promises there."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.flow_runs import WORKER, Run, RunLog, moved_twice
from chaos.holds import now_ms
from chaos.kill_points import edit_include
from chaos.tasks import LEASE
from chaos.unique_plan import SPACING, UniquePlan
from redis_queue.admission.rules import END, START, TIME
from redis_queue.validation.history import Event

RUN: Final = "unique:"
"""Prefix of the ids of the runs: task id and label of the arguments follow."""

CALL: Final = "call:"
"""Prefix of the ids of the calls: the label, and the id of the task that the call returned or was refused for."""

TAKING: Final = "taking"
"""Op of an event: a worker took the task for the first time."""

_TAKINGS: Final = "chaos takings"
"""Key of a hash: ids of tasks, and when they were first taken, in ms."""

SETTLED_MS: Final = 10_000
"""Time after the end of a run in which its message is settled: its worker may be stopped for twice its lease."""

ROUNDING: Final = 1
"""Times are whole ms, rounded down."""


def note_takings() -> None:
    """Let the script with which this process takes tasks note when: it may be killed before it starts them."""
    last = r"^  return message, .*"
    edit_include("unique_take", last, rf"  redis.call('HSETNX', '{_TAKINGS}', id, now)\n\g<0>")


def is_unique(event: Event) -> bool:
    """Return whether *event* is about a call or a run of a unique task."""
    return event.id.startswith((RUN, CALL))


class UniqueLog(RunLog):
    """Records the runs of one process of a pool by task id and label."""

    all_have_places = False
    """A retry that owns no key is sent to the broker."""

    def enter(self, label: str, request: Any) -> None:
        """Record also when the task was taken first, perhaps by another worker."""
        at = self._client.hget(_TAKINGS, request.id)
        if at is not None:
            self._history.write(Event(TAKING, "ok", f"{RUN}{request.id}", at=int(at)))
        super().enter(label, request)

    def id_of(self, label: str, request: Any) -> str:
        """Return the id under which a run is recorded."""
        return f"{RUN}{request.id}:{label}"

    def die(self) -> None:
        """Record that this process is killed: perhaps after the run, or while it sends a retry."""
        super().die()
        self._history.write(Event("die", "ok", CALL, at=now_ms(), lane=self._worker))


@dataclass(slots=True)
class Call:
    """A call, from *begins* to *ends*: inf if unknown. *id*: "" if its outcome is unknown; *is_ok*: it returned."""

    label: str
    id: str = ""
    begins: int = 0
    ends: float = math.inf
    is_ok: bool = False

    @property
    def plan(self) -> UniquePlan:
        """What its label tells."""
        return UniquePlan.of(self.label)

    @property
    def is_sent(self) -> bool:
        """Whether its message was sent for certain, under its own id."""
        return self.is_ok and self.id == self.label

    @property
    def due(self) -> int:
        """The earliest time at which it may be due."""
        return self.begins + int(self.plan.delay * 1000)


@dataclass(slots=True)
class UniqueRun(Run):
    """A run of the task *id* with the arguments of the call *label*; it was inside for certain until *ends*.

    *left*: when it ended; *done*: when it ended well, its lease held, and without a retry; *worker*: process id of its
    worker.
    """

    id: str = ""
    attempt: int = 0
    worker: int = 0
    left: float = math.inf
    done: float = math.inf

    @property
    def plan(self) -> UniquePlan:
        """What the label of its arguments tells."""
        return UniquePlan.of(self.label)


Broken = Iterator[tuple[str, str, Sequence[str]]]
"""Promises, their tasks, and the ids of the tasks to show."""


@dataclass
class Story:
    """The calls, and the runs and first taking of each task, of a history.

    *dead*: when workers were killed, by process id; *deaths*: when they or their processes were. *cancelled*: ids of
    tasks that may not run. *twice*: labels of messages of which there may be two.
    """

    calls: list[Call] = field(default_factory=list)
    runs: dict[str, list[UniqueRun]] = field(default_factory=lambda: defaultdict(list))
    taken: dict[str, int] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)
    deaths: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    cancelled: set[str] = field(default_factory=set)
    twice: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, events: Sequence[Event]) -> Story:
        found = cls(twice=moved_twice(events))
        found.add_deaths(event for event in events if event.op == "die")
        calls: dict[str, Call] = {}
        numbers: dict[int, list[Event]] = defaultdict(list)
        for event in events:
            if event.op == TAKING:
                found.taken.setdefault(event.id.removeprefix(RUN), event.at)
            elif event.id.startswith(RUN):
                numbers[event.claim].append(event)
            elif event.id.startswith(CALL):
                label, _, id_ = event.id.removeprefix(CALL).partition(":")
                _add(calls.setdefault(label, Call(label)), event, id_)
            elif (event.op, event.kind) == ("cancel", "invoke"):
                found.cancelled.add(event.id)
        # The deaths of processes that made no call have no label.
        found.calls = [call for label, call in calls.items() if label]
        for run in (_run(number, history, found.dead) for number, history in numbers.items()):
            found.runs[run.id].append(run)
        for runs in found.runs.values():
            runs.sort(key=lambda one: one.begins)
        return found

    def add_deaths(self, events: Iterable[Event]) -> None:
        """Note which processes were killed."""
        for event in events:
            self.deaths[event.lane].append(event.at)
            if event.id.startswith(WORKER):
                self.dead[event.lane] = event.at

    def retries(self, id_: str) -> bool:
        """Return whether any run of the task sent a retry."""
        return any(run.plan.retries for run in self.runs.get(id_, ()))

    def done(self, id_: str) -> float:
        """Return when the task ended first for certain; inf if unknown."""
        return min((run.done for run in self.runs.get(id_, ())), default=math.inf)


def _add(call: Call, event: Event, id_: str) -> None:
    if (event.op, event.kind) == ("call", "invoke"):
        call.begins = event.at
    elif event.op == "die":
        # It may die later, while it sends a revoke.
        call.ends = min(call.ends, event.at)
    else:
        call.id, call.ends, call.is_ok = id_, event.at, event.kind == "ok"


def _run(number: int, events: Sequence[Event], dead: Mapping[int, int]) -> UniqueRun:
    run = UniqueRun("", number)
    run.add(events, dead)
    run.id, _, run.label = run.label.removeprefix(RUN).partition(":")
    for event in events:
        if event.op == "enter":
            run.attempt, run.worker = event.deliveries, event.lane
        elif event.op == "leave":
            run.left = event.at
            again = run.plan.retries and run.attempt == 1
            run.done = event.at if event.kind == "ok" and not again else math.inf
    return run


def broken_uniques(events: Sequence[Event]) -> Iterator[tuple[str, str, list[Event]]]:
    """Yield each broken promise with its key or task, and the events of the tasks.

    * Accepted: the task that a call returned runs, even if its own sender was killed; until its start, it is taken
      after the call began; else it has not ended long before. After a call that replaces, its arguments run, or later
      ones, and older ones do not.
    * One at a time: of a key with until "start", no two tasks wait, from the end of their calls until they are taken;
      with "end", no two wait or run; with a time, the next one is due so much later. Tasks that were revoked or
      expired do not count here.
    * Alone: with until "end", no two tasks of a key are inside at once.
    * Once: a task ends once, unless it was redelivered after a kill or a lost lease, or sent a retry.

    What was moved from RabbitMQ into its flow twice may run a second time, and beside the next one of its key.
    """
    story = Story.of(events)
    if not story.calls:
        return
    broken = [*_not_accepted(story), *_together(story), *_inside(story), *_again(story)]
    for promise, what, ids in broken:
        yield promise, what, [event for event in events if _is_of(event, ids)]


def _is_of(event: Event, ids: Sequence[str]) -> bool:
    if not is_unique(event):
        return event.op == "cancel" and event.id in ids
    return any(part in ids for part in event.id.split(":")[1:])


def _not_accepted(story: Story) -> Broken:
    others: dict[str, list[Call]] = defaultdict(list)
    for call in story.calls:
        others[call.plan.place].append(call)
    for call in story.calls:
        if not call.id or call.id in story.cancelled or not call.id[0].isalpha():
            continue
        runs = story.runs.get(call.id, [])
        replaces = call.plan.unique.on_conflict == "replace" and call.is_ok
        ran = _ran_later(call, runs, {one.label: one for one in others[call.plan.place]}) if replaces else False
        has_to_replace = call.plan.unique.on_conflict == "replace" and call.plan.unique.kind == START
        if not ran and (has_to_replace or not _ran(call, runs)):
            yield "accepted and did not run", call.label, [call.id, call.label]
        if replaces:
            yield from _outdated(call, runs, others[call.plan.place])


def _ran(call: Call, runs: Sequence[UniqueRun]) -> bool:
    """Return whether the task that the call returned ran after it, or still ran then, or its time had not passed."""
    kind = call.plan.unique.kind
    if kind == START:
        return any(run.begins + ROUNDING >= call.begins for run in runs)
    if kind == TIME:
        return bool(runs)
    return any(run.left >= call.begins - SETTLED_MS for run in runs)


def _ran_later(call: Call, runs: Sequence[UniqueRun], calls: Mapping[str, Call]) -> bool:
    """Return whether the arguments of the call or of one that is not older ran after it began."""
    return any(
        run.begins + ROUNDING >= call.begins
        and (run.label == call.label or run.label not in calls or calls[run.label].ends >= call.begins)
        for run in runs
    )


def _outdated(call: Call, runs: Sequence[UniqueRun], others: Sequence[Call]) -> Broken:
    """Yield first deliveries of older arguments, taken after the call has replaced them."""
    if call.id == call.label:
        return
    older = {one.label for one in others if one.ends < call.begins and not one.plan.retries}
    waits = call.plan.unique.kind == START
    for run in runs:
        if run.label in older and run.is_first and run.taken > call.ends + ROUNDING and waits:
            yield "replaced and ran", call.label, [call.id]


def _together(story: Story) -> Broken:
    places: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    sent = {call.label: call for call in story.calls if call.is_sent}
    # The tasks of killed senders wait, too, but it is unknown since when.
    for id_ in {*sent, *story.runs} - story.cancelled:
        begins, ends = _window(story, id_, sent.get(id_))
        if ends > begins:
            places[UniquePlan.of(id_).place].append((begins, ends, id_))
    for place, windows in places.items():
        latest, owner = 0.0, ""
        for begins, ends, id_ in sorted(windows):
            if begins < latest:
                yield "two at a time", place, [owner, id_]
            if ends > latest:
                latest, owner = ends, id_


def _window(story: Story, id_: str, call: Call | None) -> tuple[float, float]:
    """Return from when to when the task owned its key for certain; (0, 0) if unknown."""
    runs, kind = story.runs.get(id_, []), UniquePlan.of(id_).unique.kind
    begins = call.ends + ROUNDING if call else math.inf
    if kind == TIME:
        return (begins, call.due + SPACING * 1000 - ROUNDING) if call else (0, 0)
    if kind == START:
        # Whatever became of the worker that took it.
        return (begins, story.taken.get(id_, 0)) if call else (0, 0)
    done = story.done(id_)
    return (min(begins, runs[0].begins), done) if runs and done < math.inf else (0, 0)


def _inside(story: Story) -> Broken:
    places: dict[str, list[UniqueRun]] = defaultdict(list)
    for id_, runs in story.runs.items():
        if UniquePlan.of(id_).unique.kind == END and not story.retries(id_):
            done = story.done(id_)
            found = (run for run in runs if run.ends > run.begins and run.begins <= done)
            # A second message does not own the key any more.
            places[UniquePlan.of(id_).place] += [run for run in found if run.label not in story.twice]
    for place, inside in places.items():
        latest: UniqueRun | None = None
        for run in sorted(inside, key=lambda one: one.begins):
            if latest is not None and run.id != latest.id and run.begins < latest.ends:
                yield "two inside", place, [latest.id, run.id]
            latest = run if latest is None else max(latest, run, key=lambda one: one.ends)


def _again(story: Story) -> Broken:
    for id_, runs in story.runs.items():
        if story.retries(id_):
            continue
        done = [run for run in runs if run.done < math.inf]
        for before, run in itertools.pairwise(done):
            died = any(before.done <= at <= run.begins for at in story.deaths[before.worker])
            # The lease begins when the message is taken, which is not known of every run.
            lost = run.begins - (before.taken or before.begins) >= LEASE * 1000 - ROUNDING
            # A message that waits again may be replaced.
            is_new = run.is_first and run.label == before.label
            if (is_new or not (died or lost)) and story.twice.isdisjoint((before.label, run.label)):
                yield "ran twice", id_, [id_]
