"""Periodic tasks as commands, pages, metrics and incidents show them."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal, get_args

from redis_queue.basics.options import Conditions
from redis_queue.basics.times import exact_span_text, from_ms, to_ms
from redis_queue.celery.message.entry import TaskCall
from redis_queue.celery.schedules.rules import rules_text
from redis_queue.celery.schedules.schedules import Schedule
from redis_queue.operate.access import Access
from redis_queue.operate.listing import Chunk, Listing
from redis_queue.schedules.definition import Definition
from redis_queue.schedules.state import REASONS, Event, Run, runs_of
from redis_queue.schedules.store import Stored
from redis_queue.store.keys import is_name

State = Literal["active", "paused", "over", "unreadable"]
"""Of a schedule; one that is over has no more due times."""

STATES: Final = get_args(State)

MAX_STATES: Final = 1000
"""Maximum number of schedules that are counted, those first that are sent next."""

MAX_LOOKS: Final = 50
"""Maximum number of late schedules, and of others, whose definitions and events are read to find incidents."""

STEP: Final = 50
"""Definitions of one read; each has up to 32 KiB."""

BY_HAND: Final = ("by hand", "backfill")
"""Texts of events of runs that a person sent."""


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule, its last *events*, the newest first, and the Celery *queue* of its runs; "" if it is unknown.

    *due* is the next due time in ms, 0 if there is none.
    """

    schedule: Schedule
    due: int = 0
    events: Sequence[Event] = ()
    queue: str = ""

    @classmethod
    def of(cls, access: Access, stored: Stored) -> ScheduleRow:
        """Return *stored* without its events."""
        schedule, state = Schedule.of(stored), stored.state
        queue = "" if schedule.definition is None else queue_of(access, schedule.definition)
        return cls(schedule, 0 if state is None else state.due, queue=queue)

    @property
    def name(self) -> str:
        """Its name."""
        return self.schedule.name

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.schedule.task

    @property
    def error(self) -> str:
        """Why it cannot be sent; "" if it can be read."""
        return self.schedule.error

    @property
    def state(self) -> State:
        """Its state."""
        return "unreadable" if self.error else "paused" if self.schedule.paused else "active" if self.due else "over"

    @property
    def runs(self) -> list[Run]:
        """The runs that its events tell of, the newest first."""
        return runs_of(self.events)

    @property
    def last(self) -> Event | None:
        """The last run that was sent."""
        return next((event for event in self.events if event.kind == "sent"), None)

    @property
    def lateness(self) -> float | None:
        """Seconds by which the last run was late; None if a person sent it, or none was sent."""
        runs = self.runs
        return self.lateness_of(runs[0]) if runs else None

    def lateness_of(self, run: Run) -> float | None:
        """Return by how many seconds a run was late; None if a person sent it."""
        definition = self.schedule.definition
        if definition is None or run.text in BY_HAND:
            return None
        return max(0, to_ms(run.sent_at) - definition.fire_ms(to_ms(run.due))) / 1000

    @property
    def outcome(self) -> str | None:
        """How the last run ended; None while that is not known."""
        runs = self.runs
        return runs[0].outcome if runs else None

    def overdue(self, now: datetime) -> float:
        """Return by how many seconds its next run is late at *now*; 0 unless it is active."""
        definition = self.schedule.definition
        if definition is None or self.state != "active":
            return 0.0
        return max(0, to_ms(now) - definition.fire_ms(self.due)) / 1000

    @property
    def document(self) -> dict[str, Any]:
        """The schedule as a document, without its definition."""
        schedule, last = self.schedule, self.last
        known = ("name", "next_run", "paused", "pause_ends", "static", "runs", "failed", "failures")
        run = {"id": last.id, "due": from_ms(last.due), "sent_at": from_ms(last.at)} if last else None
        return {
            **{name: getattr(schedule, name) for name in known},
            **{name: getattr(schedule, name) or None for name in ("rules", "timezone", "task", "app")},
            "queue": self.queue or None,
            "state": self.state,
            "skipped": {reason: schedule.skipped.get(reason, 0) for reason in REASONS},
            "last_run": run and {**run, "late": self.lateness, "outcome": self.outcome},
            "error": self.error or None,
        }


def queue_of(access: Access, definition: Definition) -> str:
    """Return the Celery queue of the runs of *definition*; "" if it is unknown: without an app, or by its routes."""
    try:
        call = TaskCall(definition.task, definition.args, definition.kwargs, definition.options)
        routed = call if access.app is None else call.routed(access.app)
    except Exception:  # noqa: BLE001 - routers of the app may raise anything
        return ""
    return str(routed.options.get("queue") or "")


class ScheduleList(Listing[ScheduleRow, int]):
    """Schedules with *part* in their name or task, and in this *state*, those first that are sent next.

    While a list is paged through, a schedule that moves on may be missing or come twice.
    """

    noun = ("schedule",)

    def __init__(self, access: Access, part: str = "", state: State | None = None) -> None:
        super().__init__(Conditions(task_part=part or None))
        self._access, self._part, self._state = access, part, state

    @property
    def searches(self) -> bool:
        """Whether items that are read may not match."""
        return bool(self._part or self._state)

    def read(self, cursor: int | None, size: int, budget: int | None) -> Chunk[ScheduleRow, int]:  # noqa: ARG002
        """Read schedules, without their events."""
        start, step = cursor or 0, min(size, STEP)
        names = self._access.schedules.store.names(start, step)
        items = [(row, start + number) for number, row in enumerate(_rows(self._access, names), 1)]
        return Chunk(items, start + len(names) if len(names) == step else None)

    def match(self, item: ScheduleRow) -> bool:
        """Return whether a schedule matches, and count it."""
        self.report.add(item.task)
        return self._state in (None, item.state) and (self._part in item.name or self._part in item.task)

    def nothing(self, otherwise: str) -> tuple[str, str]:
        """Return what to tell if no schedule was found, and a hint."""
        return self.report.no_match(self.noun, self.conditions) if self.searches else (otherwise, "")


def _rows(access: Access, names: Sequence[str]) -> list[ScheduleRow]:
    # Other programs may have written names that no call takes.
    known = access.schedules.store.get(name for name in names if is_name(name))
    found = {stored.name: stored for stored in known if stored is not None}
    lost = "its name is invalid, or it was deleted meanwhile"
    return [ScheduleRow.of(access, found.get(name) or Stored(name, None, None, b"", error=lost)) for name in names]


def with_events(access: Access, rows: Sequence[ScheduleRow]) -> list[ScheduleRow]:
    """Return *rows* with their last events."""
    events = access.schedules.store.events_of([row.name for row in rows])
    return [replace(row, events=found) for row, found in zip(rows, events, strict=True)]


def find_row(access: Access, name: str) -> ScheduleRow:
    """Return the schedule *name* with its events. Raises InvalidValueError, with a suggestion, for an unknown one."""
    access.schedules.find(name)
    (row,) = with_events(access, _rows(access, [name]))
    return row


@dataclass(frozen=True, slots=True)
class ScheduleCounts:
    """Sums over the first :data:`MAX_STATES` schedules; *lateness*: seconds by which the most overdue one is late."""

    states: Mapping[str, int]
    runs: int
    failed: int
    skipped: Mapping[str, int]
    lateness: float


def count(access: Access) -> ScheduleCounts:
    """Count the schedules; at most :data:`MAX_LOOKS` definitions are read. Raises StoreError."""
    read, now = access.schedules.store.states(MAX_STATES), access.inspector.now()
    states = [stored.state for stored in read if stored.state is not None]
    rows = _rows(access, [stored.name for stored in _late(read, now)])
    # A definition is only read when its schedule is late, as an unreadable one soon is.
    counts = Counter[str]([*map(_state_of, read), *(row.state for row in rows)])
    counts["active"] -= len(rows)
    return ScheduleCounts(
        {state: counts[state] for state in STATES},
        sum(state.runs for state in states),
        sum(state.failed for state in states),
        {reason: sum(state.skipped_for(reason) for state in states) for reason in REASONS},
        max((row.overdue(now) for row in rows), default=0.0),
    )


def look(access: Access, now: datetime) -> list[ScheduleRow]:
    """Return the schedules that may be wrong: the most overdue ones, and others that skipped, failed, or are next.

    Of the first :data:`MAX_STATES`, twice :data:`MAX_LOOKS` are read with their events. Raises StoreError.
    """
    read = access.schedules.store.states(MAX_STATES)
    odd = [stored for stored in read if _is_odd(stored)]
    chosen = [*_late(read, now), *itertools.islice(dict.fromkeys([*odd, *read]), MAX_LOOKS)]
    return with_events(access, _rows(access, list(dict.fromkeys(stored.name for stored in chosen))))


def _late(read: Sequence[Stored], now: datetime) -> list[Stored]:
    """Return the active schedules whose due time has passed, the most overdue first."""
    due = [(stored.state.due, stored) for stored in read if stored.state is not None and _state_of(stored) == "active"]
    late = sorted((pair for pair in due if pair[0] < to_ms(now)), key=lambda pair: pair[0])
    return [stored for _, stored in late[:MAX_LOOKS]]


def _is_odd(stored: Stored) -> bool:
    state = stored.state
    return state is None or bool(stored.error or state.late or state.overlap or (state.is_paused and state.streak))


def _state_of(stored: Stored) -> State:
    """Return the state without reading the definition."""
    state = stored.state
    if state is None or stored.error:
        return "unreadable"
    return "paused" if state.is_paused else "active" if state.due else "over"


_PLAIN_OPTIONS: Final = ("queue", "exchange", "routing_key", "serializer", "compression")
"""Options of a run, besides numbers, that are shown without its body."""

_SPANS: Final = ("window", "overlap_timeout", "jitter", "expires")


def definition_fields(definition: Definition | None, *, with_body: bool = True) -> dict[str, str | None]:
    """Return the fields of *definition* as people read them, and as put does; None for those without a value.

    Without the body, args and kwargs are left out, and of the options those that may say more than how a run is sent,
    such as headers.
    """
    hidden = ("name", "version", "tzdata", *(() if with_body else ("args", "kwargs")))
    known = {} if definition is None else asdict(definition)
    if not with_body and definition is not None:
        known["options"] = {name: value for name, value in definition.options.items() if _is_plain(name, value)}
    return {name.replace("_", " "): _field(name, value) for name, value in known.items() if name not in hidden}


def has_body(definition: Definition) -> bool:
    """Return whether :func:`definition_fields` leaves out fields without the body."""
    options = definition.options.items()
    return bool(definition.args or definition.kwargs) or not all(_is_plain(name, value) for name, value in options)


def _is_plain(option: str, value: Any) -> bool:
    return option in _PLAIN_OPTIONS or isinstance(value, int | float)


def changes(before: Definition | None, after: Definition) -> list[tuple[str, str | None, str | None]]:
    """Return the label and the values before and after of each field that differs."""
    # A new schedule shows what differs from the defaults.
    old = definition_fields(before or Definition(after.name, "-", ()))
    new = definition_fields(Definition.read(after.text()))
    rows = [(name, old[name], value) for name, value in new.items() if value != old[name]]
    return [(name, None if before is None else was, value) for name, was, value in rows]


def _field(name: str, value: Any) -> str | None:
    if name == "rules":
        return rules_text(value)
    if value in (None, "", [], {}, ()) or value is False or (name, value) == ("jitter", 0):
        return None
    if name in _SPANS and value != "next":
        return exact_span_text(value)
    if name == "until":
        return f"{from_ms(value)}".replace("+00:00", " UTC")
    if name == "exclude":
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
