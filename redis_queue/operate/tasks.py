"""Tasks that wait, run or have ended: one search through all places that keep them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from kombu.exceptions import OperationalError

from redis_queue.basics.options import Conditions
from redis_queue.errors import InvalidValueError, StoreError, StoreUnavailableError
from redis_queue.operate.access import Access
from redis_queue.operate.items import FailureList, Letters, point
from redis_queue.operate.listing import MAX_LOOKED_AT, MAX_LOOKED_AT_TO_ACT, Chunk, Listing, SearchReport
from redis_queue.operate.queue_row import BROKEN, fault_text
from redis_queue.operate.task_rows import (
    FetchedList,
    RunList,
    RunningList,
    TaskRow,
    delayed,
    row_of_entry,
    row_of_failure,
    row_of_fetched,
    row_of_letter,
    row_of_message,
    row_of_run,
    row_of_running,
    waiting,
)
from redis_queue.store.ids import id_bytes, id_text

MAX_SEARCHED: Final = 10_000
"""Tasks of each place that one page of a search looks at."""

MAX_NUMBER: Final = 10**9
MAX_PART: Final = 600
"""Maximum characters of a text in a cursor."""


class _Place(NamedTuple):
    """A place that keeps tasks: their *states*, what lists them, and what makes a row of one.

    *shape* is that of its cursors: int, str, or a tuple of these. *unknown* are conditions on what it does not know.
    """

    name: str
    states: Sequence[str]
    unknown: Sequence[str]
    shape: Any
    source: Callable[[Access, Conditions], Any]
    row: Callable[[Any], TaskRow]


PLACES: Final = (
    _Place("running", ("running",), ("release",), int, RunningList, row_of_running),
    # The report of a running task has no stamps, and a short text of its arguments; its message has both.
    _Place("in flight", ("fetched", "running"), ("worker", "release"), (int, int), FetchedList, row_of_fetched),
    _Place("failed", ("failed",), ("stamp",), str, FailureList, row_of_failure),
    _Place(
        "dead letters",
        ("dead letter",),
        ("worker", "release"),
        (int, int),
        lambda access, conditions: Letters(access, None, conditions),
        row_of_letter,
    ),
    _Place("waiting", ("waiting",), ("worker", "release"), (str, (int, int)), waiting, row_of_message),
    _Place("delayed", ("delayed",), ("worker", "release"), (str, str), delayed, row_of_entry),
    _Place("kept runs", ("succeeded", "failed", "retried", "revoked"), ("stamp",), str, RunList, row_of_run),
)
"""All places, in the order of a page."""

STATES: Final = tuple(dict.fromkeys(state for place in PLACES for state in place.states))


@dataclass(frozen=True, slots=True)
class Look:
    """How far a place was searched: *looked* tasks of *total*, None if that is unknown; *more*: it has others.

    *note* tells why it was not searched, or not all of it.
    """

    place: str
    looked: int = 0
    total: int | None = None
    more: bool = False
    note: str = ""

    @property
    def text(self) -> str:
        """What people have to know of it; "" if all of it was searched."""
        of = "" if self.total is None else f" of {max(self.looked, self.total):,}"
        far = f"looked at {self.looked:,}{of} {self.place}" if self.more else ""
        note = f"{self.place}: {self.note}" if self.note else ""
        return "; ".join(filter(None, (far, note)))


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Tasks, the cursor of the *next* page, None after the last one, and how far each place was searched."""

    rows: Sequence[TaskRow]
    next: str | None
    looks: Sequence[Look]


@dataclass(slots=True)
class _Position:
    """How far a place was read: the cursor of what is next, and the number of its tasks that were looked at."""

    cursor: Any = None
    looked: int = 0
    is_over: bool = False


class TaskSearch:
    """The tasks in *states*, by default in any, that meet *conditions*, from all places that keep tasks.

    The times of the conditions, counted back from now, limit :attr:`TaskRow.at`; tasks without a known time do not
    meet them. A task that has run for less than a second is still *fetched*, if its worker acknowledges late.
    """

    def __init__(self, access: Access, conditions: Conditions, states: Sequence[str] = ()) -> None:
        self._access = access
        after, before = point(access, conditions.due_after), point(access, conditions.due_before)
        self.conditions = replace(conditions, due_after=after, due_before=before)
        self.report = SearchReport()
        #: Whether tasks have to be read to know which match; else the first ones are shown.
        self.searches = bool(conditions)
        self._states = frozenset(states or STATES)
        self._places = [place for place in PLACES if self._states.intersection(place.states)]

    def page(self, after: str | None, limit: int) -> TaskPage:
        """Return up to *limit* tasks behind the cursor *after*, place by place, each with a share of the rows.

        Of each place, a search looks at about :data:`MAX_SEARCHED` tasks and 8 MiB. A place that cannot be read does
        not hide the others. Raises InvalidValueError for a cursor that is none, and StoreUnavailableError.
        """
        positions = _read_cursor(after, [place.name for place in self._places])
        rows: list[TaskRow] = []
        looks: list[Look] = []
        for number, place in enumerate(self._places):
            position = positions[place.name]
            if position.is_over:
                continue
            # Places before this one may have left some of their shares.
            left = sum(not positions[later.name].is_over for later in self._places[number:])
            share = max(1, (limit - len(rows)) // left) if len(rows) < limit else 0
            looks.append(self._look(place, position, rows, share))
        is_over = all(position.is_over for position in positions.values())
        return TaskPage(rows, None if is_over else _write_cursor(positions), looks)

    def first(self, limit: int) -> tuple[list[TaskRow], bool, list[Look]]:
        """Return the first *limit* tasks, whether there are more, and how far each place was searched.

        It looks at about :data:`MAX_LOOKED_AT_TO_ACT` tasks of each place.
        """
        rows: list[TaskRow] = []
        looks: dict[str, Look] = {}
        after: str | None = None
        while True:
            page = self.page(after, limit - len(rows))
            rows += page.rows
            looks |= {look.place: look for look in page.looks}
            after = page.next
            far = max((look.looked for look in page.looks), default=0)
            if after is None or len(rows) >= limit or far >= MAX_LOOKED_AT_TO_ACT:
                return rows, after is not None, list(looks.values())

    def nothing(self, otherwise: str) -> tuple[str, str]:
        """Return what to tell if no task was found, and a hint: how many were searched, or *otherwise*."""
        return self.report.no_match(("task",), self.conditions) if self.searches else (otherwise, "")

    def _look(self, place: _Place, position: _Position, rows: list[TaskRow], share: int) -> Look:
        """Append up to *share* tasks of *place* to *rows*, and move its *position*."""
        unknown = [name for name in place.unknown if self.conditions.has(name)]
        if unknown:
            position.is_over = True
            return Look(place.name, note=f"not searched: they have no {unknown[0]}")
        if share < 1:
            return Look(place.name, position.looked, more=True)
        try:
            listing = _PlaceList(place, self._access, self.conditions, self._states, self.report)
            found = listing.page(position.cursor, share, most=MAX_SEARCHED if listing.searches else MAX_LOOKED_AT)
        except (InvalidValueError, StoreUnavailableError):
            raise
        except (StoreError, OperationalError, *BROKEN) as error:
            position.is_over = True
            return Look(place.name, position.looked, note=f"not searched: {fault_text(error)}")
        rows += found.items
        position.cursor, position.is_over = found.next, found.next is None
        position.looked += found.looked
        total = None if position.is_over else listing.total()
        notes = f"too large to search: {found.unread:,}" if found.unread else "", listing.fault_text()
        return Look(place.name, position.looked, total, not position.is_over, "; ".join(filter(None, notes)))


class _PlaceList(Listing[TaskRow, Any]):
    """The tasks in *states* of one *place*."""

    def __init__(
        self, place: _Place, access: Access, conditions: Conditions, states: frozenset[str], report: SearchReport
    ) -> None:
        super().__init__(conditions)
        self._place, self._states, self._access = place, states, access
        self._source: Listing[Any, Any] = place.source(access, conditions)
        self.report = report

    @property
    def searches(self) -> bool:
        return bool(self.conditions) or not self._states.issuperset(self._place.states)

    def read(self, cursor: Any, size: int, budget: int | None) -> Chunk[TaskRow, Any]:
        chunk = self._source.read(cursor, size, budget)
        items = [(self._place.row(found), behind) for found, behind in chunk.items]
        return Chunk(items, chunk.next, chunk.spent, chunk.ends)

    def match(self, item: TaskRow) -> bool:
        self.report.add(item.task)
        return item.is_task and item.state in self._states and self._in_time(item.at) and self.conditions.match(item)

    def is_unread(self, item: TaskRow) -> bool:
        return self.reads and item.unread

    def opened(self) -> AbstractContextManager[Any]:
        return self._source.opened()

    def total(self) -> int | None:
        """Return the number of tasks of this place; None if it is unknown."""
        count = getattr(self._source, "total", None)
        try:
            return None if count is None else count()
        except BROKEN:
            return None

    def fault_text(self) -> str:
        """Return which queues were not read; "" if all were."""
        return "; ".join(filter(None, [getattr(self._source, "note", ""), self._source.report.faults.text()]))

    def _in_time(self, at: datetime | None) -> bool:
        before, after = self.conditions.window(self._access.inspector.now)
        if after is None and before is None:
            return True
        return at is not None and (after is None or at >= after) and (before is None or at < before)


def _write_cursor(positions: dict[str, _Position]) -> str:
    parts = {name: [at.cursor, at.looked] for name, at in positions.items() if not at.is_over}
    return base64.urlsafe_b64encode(id_bytes(json.dumps(parts, ensure_ascii=False))).decode()


def _read_cursor(text: str | None, names: Sequence[str]) -> dict[str, _Position]:
    """Return the positions of the places *names*. Raises InvalidValueError."""
    if text is None:
        return {name: _Position() for name in names}
    shapes = {place.name: place.shape for place in PLACES}
    try:
        found = json.loads(id_text(base64.b64decode(text, altchars=b"-_", validate=True)))
        read = {
            name: _Position(at if at is None and name in shapes else _part(at, shapes[name]), _part(looked, int))
            for name, (at, looked) in found.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidValueError("after: must be the cursor of a page of tasks") from None
    return {name: read.get(name, _Position(is_over=True)) for name in names}


def _part(value: Any, shape: Any) -> Any:
    """Return a part of a cursor; raises ValueError if it has not this *shape*."""
    if isinstance(shape, tuple) and isinstance(value, list) and len(value) == len(shape):
        return tuple(_part(*pair) for pair in zip(value, shape, strict=True))
    if value is None and shape is not int:
        return None
    if shape is int and type(value) is int and 0 <= value <= MAX_NUMBER:
        return value
    if shape is str and isinstance(value, str) and len(value) <= MAX_PART:
        return value
    raise ValueError("another shape")
