"""When schedules are due within a day: single times, and spans with many of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, takewhile
from typing import Final

from redis_queue.basics.times import monotonic, to_ms
from redis_queue.celery.schedules.runs import calendar_of
from redis_queue.operate.schedules import ScheduleRow
from redis_queue.schedules.definition import Definition
from redis_queue.schedules.state import dues_of

DAY_MS: Final = 24 * 3_600_000

GAP_MS: Final = 900_000
"""Due times that are closer together than this many ms make up a span, so a day has at most 96 single ones."""

FEW: Final = 4
"""Due times within a gap that make up a span, if none follows soon; fewer are single ones."""

MAX_EXACT: Final = DAY_MS // GAP_MS
"""Maximum number of runs before its end that are counted one by one; with more left, a schedule is drawn to the end."""

MAX_TIME: Final = 0.25
"""Seconds for which due times are computed for one page; of further schedules, only the next one is shown."""


@dataclass(frozen=True, slots=True)
class Span:
    """Due times from *start* to *end* in ms, each less than two gaps after the one before; or a single one."""

    start: int
    end: int


def lines(rows: Iterable[ScheduleRow], start: int) -> Iterator[tuple[ScheduleRow, list[Span]]]:
    """Yield each active schedule and when it is due within the day from *start* (ms)."""
    stop_at = monotonic() + MAX_TIME
    for row in rows:
        definition = row.schedule.definition
        if row.state == "active" and definition is not None:
            due = [Span(row.due, row.due)] if row.due < start + DAY_MS else []
            yield row, _line(row, definition, start) if monotonic() < stop_at else due


def _line(row: ScheduleRow, definition: Definition, start: int) -> list[Span]:
    since, end = to_ms(row.schedule.since) if row.schedule.since else 0, start + DAY_MS
    runs_left = None if definition.max_runs is None else definition.max_runs - row.schedule.runs
    if runs_left is not None and runs_left <= MAX_EXACT:
        dues = islice(dues_of(definition, since, row.due, calendar_of(definition)), max(0, runs_left))
        return [Span(due, due) for due in takewhile(lambda due: due < end, dues)]
    last = end - 1 if definition.until is None else min(end - 1, definition.until)
    overdue = [Span(row.due, row.due)] if row.due < start else []
    # Rules without an interval do not depend on the time of the put, so equal ones are computed once.
    anchor = since if any("every" in rule for rule in definition.rules) else 0
    known = replace(definition, name="-", task="-", args=(), kwargs={}, options={}, until=None).text()
    found = (Span(max(span.start, row.due), min(span.end, last)) for span in _spans(known, anchor, start))
    return overdue + [span for span in found if span.start <= span.end]


@lru_cache(maxsize=500)
def _spans(text: str, since: int, start: int) -> list[Span]:
    """Return when the stored definition *text* is due, in a few steps for each gap, however many times are in it."""
    times = calendar_of(Definition.read(text))
    found: list[Span] = []
    due = times.next(start - 1, since)
    while due is not None and due < start + DAY_MS:
        after = times.next(due, since)
        if after is None or after >= due + GAP_MS:
            _add(found, Span(due, due))
            due = after
            continue
        later = times.next(due + GAP_MS - 1, since)
        if later is not None and later < due + 2 * GAP_MS:
            _add(found, Span(due, later))
        else:
            few = [due, after]
            while len(few) < FEW and (after := times.next(few[-1], since)) is not None and after < due + GAP_MS:
                few.append(after)
            for span in [Span(due, due + GAP_MS)] if len(few) == FEW else [Span(one, one) for one in few]:
                _add(found, span)
        due = later
    return found


def _add(found: list[Span], span: Span) -> None:
    """Add *span*, or lengthen the last one if it ends where *span* begins."""
    if found and found[-1].end >= span.start:
        span = Span(found.pop().start, span.end)
    found.append(span)
