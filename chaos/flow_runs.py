"""Runs of tasks with flows: record them in a history, and find broken promises there."""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis

from chaos.flow_plan import SMALL, Plan, Rule
from chaos.holds import now_ms
from chaos.tasks import LEASE
from redis_queue.celery.admission.admission import has_place
from redis_queue.validation.history import Event, History, Kind

RUN: Final = "run:"
"""Prefix of the ids of the runs of a task."""

WORKER: Final = "worker:"
"""Prefix of the ids of workers."""

START_TOLERANCE: Final = LEASE
"""Seconds: a task starts while its lease lasts, so starts may come closer together than takings by this time."""

WINDOW: Final = 6
"""Executions that may pass a waiting tenant besides its turns: two for each place of the limit."""

MOVE: Final = "move"
"""Op of an event: a message with this label is about to be moved from RabbitMQ into its flow."""

OUTSIDE: Final = "outside"
"""Op of an event: a run has no place in a flow."""

MICROSECONDS: Final = 1_000_000


def is_run(event: Event) -> bool:
    """Return whether *event* is about a run of a task, or the death of a worker."""
    return event.id.startswith((RUN, WORKER))


class RunLog:
    """Records the runs of one process of a pool, whose worker has the process id *worker*.

    *index*: the key of kombu's index of messages in flight, in the Redis of *client*.
    """

    all_have_places = True
    """Whether each task has a place in a flow. One of RabbitMQ has no lease by which its limits could be checked."""

    def __init__(self, history: History, client: redis.Redis, worker: int, index: str) -> None:
        self._history = history
        self._client = client
        self._worker = worker
        self._index = index
        self._id, self._tag, self._run = "", "", 0

    def enter(self, label: str, request: Any) -> None:
        """Record that a task starts, and the time of its taking unless a renewal has replaced it."""
        # A message of RabbitMQ has its tag elsewhere, and no lease.
        self._tag = request.properties.get("delivery_tag", "")
        self._run = random.getrandbits(48)
        now, score = self._look()
        id_, taken = self.id_of(label, request), []
        if self.all_have_places and not has_place(self._tag):
            taken.append(Event(OUTSIDE, "ok", id_, self._run, at=now))
        if score is not None and score % 1000 == 0 and score // 1000 <= now:
            deliveries = 2 if request.delivery_info.get("redelivered") or request.retries else 1
            taken.append(Event("take", "ok", id_, self._run, at=score // 1000, deliveries=deliveries))
        due = 0 if score is None else score // 1000 + round(LEASE * 1000)
        attempt = request.retries + 1
        entered = Event("enter", _kind(score), id_, self._run, now, due, deliveries=attempt, lane=self._worker)
        claimed = Event("claim", "ok", request.id, at=now), Event("execute", "ok", request.id)
        self._history.write(*taken, entered, *claimed)
        self._id = id_

    def id_of(self, label: str, request: Any) -> str:  # noqa: ARG002
        """Return the id under which a run is recorded."""
        return RUN + label

    def leave(self) -> None:
        """Record that the task ends, and whether its lease was held until now."""
        now, score = self._look()
        self._end(_kind(score), now)

    def die(self) -> None:
        """Record that this process is killed."""
        if self._id:
            self._end("refused", now_ms())

    def _end(self, kind: Kind, at: int) -> None:
        self._history.write(Event("leave", kind, self._id, self._run, at=at))
        self._id = ""

    def _look(self) -> tuple[int, int | None]:
        """Return the time of Redis in ms, and in µs the time at which the lease of the task began."""
        with self._client.pipeline(transaction=True) as pipe:
            pipe.time()
            pipe.zscore(self._index, self._tag)
            (seconds, microseconds), score = pipe.execute()
        return seconds * 1000 + microseconds // 1000, None if score is None else round(score * MICROSECONDS)


def _kind(lease: int | None) -> Kind:
    return "refused" if lease is None else "ok"


def death_of_worker() -> Event:
    """Return the event that this process, the main process of a worker, is killed with its children."""
    return Event("die", "ok", f"{WORKER}{os.getpid()}", at=now_ms(), lane=os.getpid())


@dataclass(slots=True)
class Run:
    """A run of a task: it held a lease for certain from *begins* to *ends*, in ms; *taken* is 0 if unknown.

    *is_first*: the task was neither redelivered nor retried; *in_time*: it started while its lease lasted.
    """

    label: str
    number: int
    taken: int = 0
    is_first: bool = False
    in_time: bool = False
    begins: int = 0
    ends: float = 0

    def add(self, events: Iterable[Event], dead: Mapping[int, int]) -> None:
        """Read the *events* of the run; *dead*: when workers were killed."""
        for event in events:
            self.label = event.id.removeprefix(RUN)
            if event.op == "take":
                self.taken, self.is_first = event.at, event.deliveries == 1
            elif event.op == "enter":
                self.begins, self.in_time = event.at, event.at <= event.due
                self.ends = min(event.due, dead.get(event.lane, event.due))
            elif event.op == "leave":
                self.ends = event.at if event.kind == "ok" else min(self.ends, event.at)


def broken_runs(events: Sequence[Event]) -> Iterator[tuple[str, str, list[Event]]]:
    """Yield each broken promise with its place or task, and the events of the runs.

    * Limit: no more runs than the limit of a place overlap. A run is certain from its start until its end if Redis had
      its lease then, otherwise at most until the end of the lease that it had at its start, or the death of its worker.
    * A task is not run twice at once, unless a retry has made it two calls, or it was moved into its flow twice.
    * Rate: in no window are more tasks taken than the burst + rate * window, and no more started with a tolerance.
    * Order: tasks of one lane are taken first in the order in which they were sent.
    * Turns: the first n tasks of a tenant wait for at most n * tenants + WINDOW takings, counted from its last sending.
    """
    puts: list[Event] = []
    history: dict[int, list[Event]] = defaultdict(list)
    dead: dict[int, int] = {}
    twice = moved_twice(events)
    for event in events:
        if event.op == "die":
            dead[event.lane] = event.at
        elif is_run(event):
            history[event.claim].append(event)
        elif (event.op, event.kind) == ("put", "ok"):
            puts.append(event)
    runs = [Run("", number) for number in history]
    for run in runs:
        run.add(history[run.number], dead)
    broken = [*_crowded(runs, twice), *_too_fast(runs), *_out_of_order(puts, runs), *_passed_over(puts, runs)]
    for promise, what, found in broken:
        yield promise, what, [event for run in found for event in history[run.number]]


def moved_twice(events: Iterable[Event]) -> set[str]:
    """Return the labels of messages of which there may be two.

    A worker that is killed has perhaps moved a message whose acknowledgement is lost, and a dispatcher has perhaps sent
    one that another dispatcher sends again: delivery by RabbitMQ is at least once.
    """
    moves = Counter(event.id for event in events if event.op == MOVE)
    return {label for label, count in moves.items() if count > 1}


Broken = Iterator[tuple[str, str, list[Run]]]


def _crowded(runs: Iterable[Run], twice: Container[str]) -> Broken:
    places: dict[tuple[str, str, int], list[Run]] = defaultdict(list)
    for run in runs:
        if run.ends > run.begins:
            for place in _limits(run.label, twice):
                places[place].append(run)
    for (promise, name, limit), found in places.items():
        running: list[Run] = []
        for run in sorted(found, key=lambda one: one.begins):
            running = [*(other for other in running if other.ends > run.begins), run]
            if len(running) > limit:
                yield promise, name, running
                break


def _limits(label: str, twice: Container[str]) -> Iterator[tuple[str, str, int]]:
    """Yield the limits of a task: the promise, the name of the place, and the most runs at once."""
    plan = Plan.of(label)
    for name, rule in plan.places.items():
        if rule.limit is not None:
            yield "more than the limit", name, rule.limit
    if not plan.fate.startswith("retry") and label not in twice:
        yield "twice at once", label, 1


def _too_fast(runs: Iterable[Run]) -> Broken:
    places: dict[str, list[Run]] = defaultdict(list)
    rules: dict[str, Rule] = {}
    for run in runs:
        for name, rule in Plan.of(run.label).places.items():
            if rule.gap is not None:
                rules[name] = rule
                places[name].append(run)
    for name, found in places.items():
        gap, burst = rules[name].gap or 0.0, rules[name].burst
        taken = [(run.taken, run) for run in found if run.taken]
        yield from _above("taken faster than the rate", name, taken, gap, burst * gap)
        started = [(run.begins, run) for run in found if run.in_time]
        yield from _above("started faster than the rate", name, started, gap, burst * gap + START_TOLERANCE * 1000)


def _above(promise: str, name: str, found: list[tuple[int, Run]], gap: float, most: float) -> Broken:
    """Yield a fault if the events come faster than one each *gap* ms, of which *most* ms may be used ahead."""
    used = 0.0
    for place, (at, _) in enumerate(found := sorted(found, key=lambda row: row[0])):
        used = max(used, at) + gap
        # Times are whole ms.
        if used - at > most + 1:
            yield promise, name, [run for _, run in found[: place + 1]]
            return


def _firsts(runs: Iterable[Run]) -> dict[str, Run]:
    """Return the run of the first taking of each task; without those whose first taking is unknown."""
    first: dict[str, Run] = {}
    for run in runs:
        if run.label not in first or run.begins < first[run.label].begins:
            first[run.label] = run
    return {label: run for label, run in first.items() if run.taken and run.is_first}


def _out_of_order(puts: Iterable[Event], runs: Iterable[Run]) -> Broken:
    firsts, lanes = _firsts(runs), defaultdict(list)
    for event in puts:
        if event.lane and event.id in firsts:
            lanes[event.lane].append(firsts[event.id])
    for lane in lanes.values():
        latest = lane[0]
        for run in lane:
            if run.taken < latest.taken:
                yield "out of order", run.label, [latest, run]
            latest = max(latest, run, key=lambda one: one.taken)


def _passed_over(puts: Iterable[Event], runs: Iterable[Run]) -> Broken:
    sent: dict[str, list[int]] = defaultdict(list)
    for event in puts:
        if event.at and event.id[0].isalpha() and _is_measured(event.id):
            sent[Plan.of(event.id).key].append(event.at)
    taken = sorted((run for run in runs if run.taken and _is_measured(run.label)), key=lambda run: run.taken)
    waited = 0
    small = {tenant: max(times) for tenant, times in sent.items() if tenant != "t0"}
    for tenant, at in small.items():
        later = [run for run in taken if run.taken > at]
        places = [place for place, run in enumerate(later, 1) if Plan.of(run.label).key == tenant]
        waited += len(places)
        for count, place in enumerate(places, 1):
            most = count * (SMALL + 1) + WINDOW
            if place > most:
                yield f"passed over: {count} tasks waited for {place} takings, expected {most}", tenant, later
                break
    if small and not waited:
        yield "no tenant waited", "", []


def _is_measured(label: str) -> bool:
    return Plan.of(label).is_measured
