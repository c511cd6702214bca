"""State: how far a schedule has come, its events, and what a dispatcher does with the due times that have passed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal, Protocol, cast

from redis_queue.basics.logs import hide_secrets
from redis_queue.basics.times import from_ms, monotonic
from redis_queue.errors import InvalidValueError
from redis_queue.schedules.definition import Definition
from redis_queue.store.ids import is_id

Reason = Literal["late", "overlap", "paused", "taken"]
"""Why a run was skipped: later than its policy allows, or a newer one was due; the run before had not ended; paused; a
unique task with its key waits or runs."""

Kind = Literal["sent", "skipped", "ended", "error", "paused", "resumed"]

REASONS: Final[tuple[Reason, ...]] = ("late", "overlap", "paused", "taken")

ON_TIME: Final = 10_000
"""Milliseconds by which a run may be late and is not missed: a failover or a short outage."""

MAX_DUES: Final = 1000
"""Maximum number of due times that one step passes, but for those of a plain interval, which need not be listed."""

MAX_STEP: Final = 0.05
"""Seconds after which a step passes no more due times: some rules take long to compute."""

MAX_SENDS: Final = 50
"""Maximum number of runs of one schedule that one step sends."""

BLOCKED: Final = 1000
"""Milliseconds after which a run that waits for the one before is looked at again."""

MAX_EVENTS: Final = 60
"""Maximum number of events of a schedule that are kept."""

MAX_EVENT_BYTES: Final = 4000
"""Maximum size of an event, whose text may have 400 characters of several bytes."""

NEVER: Final = math.inf

LAST_MS: Final = 250_000_000_000_000
"""Of the year 9892: calendars compute with times that are 50 years later, and in any time zone."""

NONE: Final = "-"

_NUMBERS: Final = ("due", "since", "runs", "late", "overlap", "paused", "taken", "failed", "streak")

_STATE: Final = re.compile(r"([0-9a-f]{8})((?: \d{1,15}){9}) ([01]) (\S{1,255}) (\d{1,15})")


@dataclass(frozen=True, slots=True)
class State:
    """How far a schedule has come. *generation* is new for each new definition and pause; times are in ms since 1970.

    *since* is when its definition was stored, from which intervals count; *due* is the next due time, 0 if there is
    none. *active* is the id of a run that has not ended, as far as is known.
    """

    generation: str
    due: int
    since: int
    runs: int = 0
    late: int = 0
    overlap: int = 0
    paused: int = 0
    taken: int = 0
    failed: int = 0
    streak: int = 0
    is_paused: bool = False
    active: str = NONE
    active_at: int = 0

    def __str__(self) -> str:
        numbers = " ".join(str(getattr(self, name)) for name in _NUMBERS)
        return f"{self.generation} {numbers} {int(self.is_paused)} {self.active} {self.active_at}"

    @classmethod
    def read(cls, text: bytes) -> State:
        """Return the stored state *text*. Raises InvalidValueError."""
        found = _STATE.fullmatch(text.decode(errors="replace"))
        if found is None:
            raise InvalidValueError("its state is unreadable: delete the schedule, and put it again")
        numbers: dict[str, Any] = dict(zip(_NUMBERS, map(int, found[2].split()), strict=True))
        if max(numbers["due"], numbers["since"]) > LAST_MS:
            raise InvalidValueError("its state has a time after the calendar: delete the schedule, and put it again")
        return cls(found[1], **numbers, is_paused=found[3] == "1", active=found[4], active_at=int(found[5]))

    def skipped_for(self, reason: Reason) -> int:
        """Return how many runs were skipped for *reason*."""
        count: int = getattr(self, reason)
        return count

    @property
    def skipped(self) -> int:
        """How many runs were skipped."""
        return sum(map(self.skipped_for, REASONS))

    def skip(self, reason: Reason, count: int) -> State:
        """Return the state after *count* more skipped runs."""
        return replace(self, **{reason: self.skipped_for(reason) + count})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a schedule at *at*.

    *kind*: ``sent`` a run, ``skipped`` *count* runs due from *due* to *until* (*text* is the reason), ``ended`` a run
    (*text* is its outcome), ``error``, ``paused`` or ``resumed`` (*text* says why); stored without likely secrets.
    """

    kind: Kind
    at: int
    id: str = NONE
    due: int = 0
    until: int = 0
    count: int = 0
    text: str = ""

    def __str__(self) -> str:
        words = " ".join("".join(c if c.isprintable() else " " for c in hide_secrets(self.text)[:300]).split())
        # A header of a message may be any text.
        id_ = self.id if is_id(self.id) and " " not in self.id else NONE
        return f"{self.kind} {self.at} {id_} {self.due} {self.until} {self.count} {words}"

    @classmethod
    def read_all(cls, lines: bytes | None) -> list[Event]:
        """Return the last :data:`MAX_EVENTS` stored events, the newest first, without unreadable ones."""
        text = (lines or b"").decode(errors="replace")
        found = (_EVENT.fullmatch(line) for line in text.split("\n", MAX_EVENTS)[:MAX_EVENTS])
        return [
            cls(cast("Kind", line[1]), int(line[2]), line[3], int(line[4]), int(line[5]), int(line[6]), line[7])
            for line in found
            if line
        ]


_EVENT: Final = re.compile(
    r"(sent|skipped|ended|error|paused|resumed) (\d{1,15}) (\S{1,255}) (\d{1,15}) (\d{1,15}) (\d{1,15}) (.{0,400})"
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: due, sent, and how it ended: *outcome* and *ended_at* are None while that is not known.

    *text* is "by hand" or "backfill" if a person sent it.
    """

    id: str
    due: datetime
    sent_at: datetime
    outcome: str | None = None
    ended_at: datetime | None = None
    text: str = ""


def runs_of(events: Sequence[Event]) -> list[Run]:
    """Return the runs that *events* tell of, the newest first."""
    ends = {event.id: event for event in reversed(events) if event.kind == "ended"}
    found: list[Run] = []
    for event in events:
        if event.kind == "sent":
            end = ends.get(event.id)
            outcome, ended_at = (None, None) if end is None else (end.text, from_ms(end.at))
            times = from_ms(event.due), from_ms(event.at)
            found.append(Run(event.id, *times, outcome, ended_at, event.text))
    return found


class DueTimes(Protocol):
    """The due times of a schedule, in ms since the epoch."""

    def next(self, after_ms: int, anchor_ms: int | None = None) -> int | None:
        """Return the first due time after *after_ms*; None if there is none."""


@dataclass(slots=True)
class Step:
    """What a dispatcher does with a schedule: *sends* are due times; then its state is *state*."""

    state: State
    sends: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    look: float = NEVER
    #: Whether the run that has not ended is to be stopped.
    cancels: bool = False

    def skip(self, reason: Reason, dues: Sequence[int], now: int) -> None:
        """Count the runs of *dues* as skipped."""
        if dues:
            self.state = self.state.skip(reason, len(dues))
            self.events.append(Event("skipped", now, NONE, dues[0], dues[-1], len(dues), reason))


def plan(definition: Definition, state: State, now: int, times: DueTimes, is_over: Callable[[], bool]) -> Step:
    """Return what to do with the due times that have passed by *now*.

    *is_over* tells whether the run that has not ended can block no more; it is called only if that matters.
    """
    dues = _passed(definition, state, now, times, MAX_SENDS if definition.missed == "all" else MAX_DUES)
    if not dues:
        return Step(state, look=definition.fire_ms(state.due) if state.due else NEVER)
    after = following(definition, state.since, dues[-1], times)
    newest_is_known = after is None or definition.fire_ms(after) > now
    wanted = _wanted(definition, dues, now, newest_is_known=newest_is_known)
    step = Step(state)
    if wanted and definition.overlap != "allow" and state.active != NONE and not is_over():
        if definition.overlap == "queue":
            # It stays due until the run before has ended; what falls due until then is skipped.
            return Step(state, look=now + BLOCKED)
        step.cancels = definition.overlap == "cancel"
        if not step.cancels:
            step.skip("overlap", wanted, now)
            dues, wanted = _without(dues, wanted), []
    if definition.overlap != "allow":
        wanted = wanted[-1:]
    if definition.max_runs is not None:
        wanted = wanted[: max(0, definition.max_runs - state.runs)]
        after = after if state.runs + len(wanted) < definition.max_runs else None
    superseded: Reason = "overlap" if definition.overlap == "queue" else "late"
    step.skip(superseded, _without(dues, wanted), now)
    step.sends = wanted
    step.state = replace(step.state, due=after or 0)
    # What is late is looked at after what falls due now.
    step.look = NEVER if after is None else max(definition.fire_ms(after), now)
    return step


def resumed(definition: Definition, state: State, now: int, times: DueTimes) -> Step:
    """Return what ends a pause: the due times that have passed by *now* are skipped.

    If there are too many for one step, it stays paused, and is looked at again at once.
    """
    dues = _passed(definition, state, now, times, MAX_DUES)
    step = Step(state)
    step.skip("paused", dues, now)
    after = (following(definition, state.since, dues[-1], times) or 0) if dues else state.due
    is_over = not after or definition.fire_ms(after) > now
    step.state = replace(step.state, due=after, is_paused=not is_over, streak=0)
    step.look = now if not is_over else definition.fire_ms(after) if after else NEVER
    if is_over:
        step.events.append(Event("resumed", now))
    return step


def following(definition: Definition, since: int, due: int, times: DueTimes) -> int | None:
    """Return the due time after *due*, or None. It is later than *due*, whatever the calendar says.

    Intervals count from *since*, not from *due*: other rules do not shift them.
    """
    found = times.next(due, since)
    if found is None or found <= due or (definition.until is not None and found > definition.until):
        return None
    return found


def dues_of(definition: Definition, since: int, first: int, times: DueTimes) -> Iterator[int]:
    """Yield the due time *first*, unless it is 0, and all that follow."""
    due = first or None
    while due is not None:
        yield due
        due = following(definition, since, due, times)


def _passed(definition: Definition, state: State, now: int, times: DueTimes, most: int) -> Sequence[int]:
    """Return the due times that have passed, at least one if there is one; up to *most*, or those of an interval."""
    every, offset = definition.every, state.due - state.since
    if every and state.due and not definition.jitter and not offset % every:
        found = range(state.due, min(now, definition.until or now) + 1, every)
        return found[:most] if definition.missed == "all" and not state.is_paused else found
    listed: list[int] = []
    stop_at = monotonic() + MAX_STEP
    for due in dues_of(definition, state.since, state.due, times):
        if definition.fire_ms(due) > now or len(listed) >= most or (listed and monotonic() > stop_at):
            break
        listed.append(due)
    return listed


def _without(dues: Sequence[int], chosen: Sequence[int]) -> Sequence[int]:
    # The last ones, of any number, or some of a few.
    if not chosen or chosen[0] == dues[-len(chosen)]:
        return dues[: len(dues) - len(chosen)]
    return [due for due in dues if due not in chosen]


def _wanted(definition: Definition, dues: Sequence[int], now: int, *, newest_is_known: bool) -> list[int]:
    def late(due: int) -> int:
        return now - definition.fire_ms(due)

    window = NEVER if definition.window is None else definition.window
    if definition.missed == "all":
        return [due for due in dues if late(due) <= max(window, ON_TIME)]
    if not newest_is_known:
        return []
    queued = definition.overlap == "queue" and late(dues[-1]) <= window
    most = window if definition.missed == "latest" or queued else 0
    return [due for due in dues[-1:] if late(due) <= max(most, ON_TIME)]


def text_of(value: Any) -> str:
    """Return an error as one line of an event; only its name if its class cannot make a text."""
    name = type(value).__name__
    try:
        return f"{name}: {value}"
    except Exception:  # noqa: BLE001 - code of the application
        return name
