"""The pages of schedules: a list with a time line, and one schedule with its runs, events and changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from flask import Blueprint, abort

from redis_queue.basics.times import from_ms, to_ms
from redis_queue.errors import InvalidValueError
from redis_queue.operate.access import Access
from redis_queue.operate.actions.schedules import PUT, put_texts
from redis_queue.operate.listing import Page
from redis_queue.operate.schedules import (
    STATES,
    ScheduleList,
    ScheduleRow,
    State,
    definition_fields,
    find_row,
    has_body,
    with_events,
)
from redis_queue.operate.time_line import DAY_MS, GAP_MS, Span, lines
from redis_queue.schedules.definition import Definition
from redis_queue.store.chunks import CHUNK
from redis_queue.store.keys import is_name
from redis_queue.web import request_args
from redis_queue.web.context import context, page
from redis_queue.web.formatting import redacted

pages = Blueprint("schedules", __name__)

NEXT: Final = "next"

SORTS: Final[Mapping[str, Callable[[ScheduleRow], Any]]] = {
    "name": lambda row: row.name,
    "task": lambda row: (row.task, row.name),
    "runs": lambda row: (-row.schedule.runs, row.name),
    "failed": lambda row: (-row.schedule.failed, row.name),
    "skipped": lambda row: (-sum(row.schedule.skipped.values()), row.name),
}
"""Orders of the list, besides that of the next runs."""

MAX_SORTED: Final = 400
"""Maximum number of schedules that are sorted: those that are sent next."""

SHOWN: Final = 10
"""Number of next runs."""

MAX_TOLD: Final = 10
"""Maximum number of times that the text of a time line names."""

WIDTH: Final = 1000
"""Units of the width of a time line."""

HEIGHT: Final = 16

AXIS: Final = 4
"""Parts of the axis of a time line."""

REASONS: Final = {
    "late": "too late, or a newer one was due",
    "overlap": "the run before had not ended",
    "paused": "the schedule was paused",
    "taken": "the key of the unique task was taken, or the task sent nothing",
}
"""Reasons of skipped runs in words."""


class SortedSchedules(ScheduleList):
    """Schedules in another order than that of their next runs: the first :data:`MAX_SORTED` that match."""

    def __init__(self, access: Access, part: str, state: State | None, sort: str) -> None:
        super().__init__(access, part, state)
        self._key = SORTS.get(sort)

    def page(self, start: int | None, limit: int, *, most: int | None = None) -> Page[ScheduleRow, int]:
        """Return up to *limit* schedules after *start*."""
        if self._key is None:
            return super().page(start, limit, most=most)
        found, first = super().page(None, MAX_SORTED, most=most), start or 0
        end = first + limit
        rows = sorted(found.items, key=self._key)
        return Page(rows[first:end], end if end < len(rows) else None, found.looked)


@dataclass(frozen=True, slots=True)
class Line:
    """The time line of a schedule: paths of an SVG for single due times and for spans of many, and both as *times*."""

    row: ScheduleRow
    marks: str
    bands: str
    times: Sequence[tuple[datetime, datetime]]
    more: int

    @classmethod
    def of(cls, row: ScheduleRow, spans: Sequence[Span], start: int) -> Line:
        """Return the line for the day from *start* on."""

        def x(at: int) -> int:
            return max(0, at - start) * WIDTH // DAY_MS

        return cls(
            row,
            "".join(f"M{x(span.start)} 0V{HEIGHT}" for span in spans if span.start == span.end),
            "".join(f"M{x(one.start)} 3H{x(one.end)}V13H{x(one.start)}z" for one in spans if one.start < one.end),
            [(from_ms(span.start), from_ms(span.end)) for span in spans[:MAX_TOLD]],
            len(spans[MAX_TOLD:]),
        )


def _time_line(rows: Iterable[ScheduleRow], now: datetime) -> dict[str, Any]:
    start = to_ms(now) // GAP_MS * GAP_MS
    return {
        "time_lines": [Line.of(row, spans, start) for row, spans in lines(rows, start)],
        "axis": [from_ms(start + DAY_MS * part // AXIS) for part in range(AXIS + 1)],
    }


@pages.get("/schedules")
def show() -> str:
    """List schedules that match the search, those first that are sent next."""
    request_args.allow("name", "state", "sort", "after", "limit")
    part, sort = request_args.text("name"), request_args.choice("sort", (NEXT, *SORTS), NEXT)
    state: Any = request_args.choice("state", ("", *STATES), "") or None
    access, start = context().access, request_args.number("after", 0, 0, request_args.MAX_OFFSET) or None
    listing = SortedSchedules(access, part or "", state, sort)
    found = request_args.searched(listing, ("name", "state"), start, "no more schedules")
    rows = with_events(access, found["page"].items)
    return page(
        "schedules.html",
        rows=[(row, is_name(row.name)) for row in rows],
        total=access.schedules.store.count(),
        states=STATES,
        sort=sort,
        most=MAX_SORTED,
        arguments=PUT,
        reasons=REASONS,
        **_time_line(rows, access.inspector.now()),
        **found,
    )


@pages.get("/schedule")
def one() -> str:
    """Show one schedule."""
    request_args.allow("name", "body")
    access, name = context().access, request_args.required("name", "a schedule from the list of all schedules")
    try:
        row = find_row(access, name)
    except InvalidValueError as error:
        abort(404, f"{error}.")
    definition, with_body = row.schedule.definition, request_args.flag("body")
    is_readable, lines_of_audit = definition is not None and not row.error, context().audit.last(CHUNK)
    known = definition_fields(definition, with_body=with_body)
    return page(
        "schedule.html",
        row=row,
        definition=definition,
        fields={label: value for label, value in known.items() if value is not None},
        hides=not with_body and definition is not None and has_body(definition),
        with_body=with_body,
        next_runs=access.schedules.next_runs(name, SHOWN) if is_readable else [],
        zone=ZoneInfo(row.schedule.timezone) if is_readable and row.schedule.timezone != "UTC" else None,
        runs=[(run, row.lateness_of(run)) for run in row.runs],
        errors=_errors(access, row),
        reasons=REASONS,
        arguments=PUT,
        **_edit(access, row, with_body=with_body),
        actions=[line for line in lines_of_audit if line.queue == name and line.verb.startswith("schedule-")],
        **_time_line([row], access.inspector.now()),
    )


def _errors(access: Access, row: ScheduleRow) -> dict[str, str]:
    """Return the errors of the failed runs that are kept, by task id."""
    failed = [run.id for run in row.runs if run.outcome == "failed"]
    return {failure.id: failure.error for failure in access.monitor.failures.summaries(failed)}


def _edit(access: Access, row: ScheduleRow, *, with_body: bool) -> dict[str, Any]:
    """Return the *values* of the form that changes a schedule, or why there is none."""
    definition = row.schedule.definition
    if access.app is None or definition is None:
        return {}
    if has_body(definition) and not with_body:
        return {"why": "to change it, show its arguments"}
    try:
        return {"values": put_values(access, definition)}
    except InvalidValueError as error:
        return {"why": str(error)}


def put_values(access: Access, definition: Definition) -> dict[str, str]:
    """Return the fields of the form that changes a schedule.

    Raises InvalidValueError if it must not be changed, or has what the form cannot send again.
    """
    if definition.static:
        raise InvalidValueError("it is in the beat_schedule of its app: change it there")
    if definition.app != access.schedules.app_name:
        raise InvalidValueError(f"it belongs to the app {definition.app!r}")
    found = put_texts(definition)
    most = {argument.name: argument.most for argument in PUT}
    bad = [
        name
        for name, text in found.items()
        if len(text) > most[name] or not text.isprintable() or redacted(text) != text
    ]
    if bad:
        raise InvalidValueError(f"change it in the code: the form cannot express its {', '.join(bad)}")
    return found
