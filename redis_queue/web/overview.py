"""The overview page: health, backlog, activity, queues, last dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from flask import Blueprint, render_template, url_for

from redis_queue.catalog import MAX_ROWS
from redis_queue.doctor.finding import ORDER, Finding
from redis_queue.operate.access import Access
from redis_queue.operate.flows import paused_queues
from redis_queue.operate.history import SPANS, Curves, curves
from redis_queue.operate.items import MAX_QUEUES
from redis_queue.operate.liveness import HEALTHY, State, WorkerState, worker_states
from redis_queue.operate.queue_row import (
    BROKEN,
    SORTS,
    CeleryOverview,
    Faults,
    Overview,
    QueueRow,
    fault_text,
    sort_rows,
)
from redis_queue.store.registry import RegistryRow
from redis_queue.web import request_args
from redis_queue.web.charts import plot_of
from redis_queue.web.context import MAX_CHECKED, Seen, context

pages = Blueprint("overview", __name__)

SHOWN: Final = 10
"""Rows of each table of queues; the page of queues has all."""

RECENT = 5
MAX_RECENT_OF = 20
"""Maximum number of queues from which recent dead letters are read."""

MAX_CURVES = 20
"""Most DelayQueues with a curve in their row."""

MAX_PLOTS = 2
"""Most DelayQueues with charts; the others have them on their pages."""

DEFAULT_SPAN: Final = "1h"

STEPS: Final = {"15m": "minute", "1h": "minute", "6h": "5 minutes", "2d": "hour", "30d": "6 hours", "90d": "day"}
"""What a point of a curve covers."""

ABANDONED: Final = 86_400.0
"""Seconds after which a queue whose messages nobody claims counts as abandoned."""

FAILING_MINUTES: Final = 10
CURVE_MINUTES: Final = 60


@dataclass(frozen=True, slots=True)
class Oldest:
    """The message of a queue that has waited longest: for how many *seconds*, and the *address* of its queue.

    *is_left*: nobody takes messages from this queue.
    """

    seconds: float
    address: str
    is_left: bool


@dataclass(frozen=True, slots=True)
class ActivitySummary:
    """What workers reported: curves, runs of the last ten minutes, executed runs of each queue by minute, failures.

    *workers* has the lost ones, too. *problem* says why the reports cannot be read.
    """

    runs: Curves | None = None
    executed: int = 0
    failed: int = 0
    by_queue: Mapping[str, Sequence[int]] = field(default_factory=dict)
    failures: int = 0
    workers: Sequence[WorkerState] = ()
    problem: str = ""

    @property
    def living(self) -> int:
        """The number of workers that are not lost."""
        return sum(one.state != "lost" for one in self.workers)

    @property
    def running(self) -> int:
        """The number of tasks that workers run."""
        return sum(one.row.busy for one in self.workers if one.state != "lost")

    @property
    def worker_problems(self) -> Mapping[State, int]:
        """The numbers of workers by state, those with a problem."""
        return Counter(one.state for one in self.workers if one.state not in HEALTHY)


@pages.get("/")
def show() -> str:
    request_args.allow("span", "sort")
    span = request_args.choice("span", SPANS, DEFAULT_SPAN)
    sort = request_args.choice("sort", SORTS, SORTS[0])
    access = context().access
    listing = access.catalog.listing(limit=MAX_QUEUES)
    too_many = listing.total + listing.unseen > MAX_CHECKED
    monitored = _activity(access, span)
    overview = access.inspector.overview(listing.known)
    rows = overview.queues
    celery = _celery(access, overview.at, sort, monitored.workers)
    dispatching = [row.name for row in rows if row.kind == "delay" and not row.error][:MAX_CURVES]
    paused = set() if celery is None else paused_queues(access)
    oldest = list(_oldest(overview, celery, paused))
    plots = [plot for plot in map(plot_of, dispatching) if plot is not None]
    return render_template(
        "overview.html",
        health=_health(again=not too_many),
        too_many=too_many,
        incidents=context().incidents.last(),
        celery=celery,
        paused=paused,
        overview=overview,
        sort=sort,
        table=replace(overview, queues=sort_rows(rows, sort)[:SHOWN]),
        shown=SHOWN,
        more=listing.total + listing.unseen - len(rows),
        ready=sum(row.ready for row in rows if row.kind == "queue") + (celery.ready or 0 if celery else 0),
        in_flight=overview.total("in_flight") + (celery.in_flight or 0 if celery else 0),
        oldest=max((one for one in oldest if not one.is_left), key=lambda one: one.seconds, default=None),
        left=[one for one in oldest if one.is_left],
        next_due=min((row.next_due for row in rows if row.next_due), default=None),
        monitored=monitored,
        spans=[(name, one.title) for name, one in SPANS.items()],
        span=span,
        step=STEPS[span],
        failing_minutes=FAILING_MINUTES,
        plots=plots[:MAX_PLOTS],
        curves={("delay", plot.queue): plot.sent for plot in plots},
        recent=_recent(rows, listing.known),
    )


def _health(*, again: bool) -> Seen[Finding] | None:
    """Return the errors and warnings of the doctor, errors first."""
    seen = context().health.last(again=again)
    if seen is None:
        return None
    problems = [finding for finding in seen.found if not finding.silent]
    return replace(seen, found=sorted(problems, key=lambda finding: ORDER[finding.severity]))


def _celery(access: Access, at: datetime, sort: str, states: Sequence[WorkerState]) -> CeleryOverview | None:
    if access.celery_queues is None:
        return None
    try:
        return access.celery_queues.overview(limit=MAX_ROWS, order=sort, states=states)
    except BROKEN as error:
        return CeleryOverview(at, error=fault_text(error))


def _oldest(overview: Overview, celery: CeleryOverview | None, paused: Collection[str]) -> Iterator[Oldest]:
    """Yield how long messages wait; a queue that nobody takes messages from would be the oldest for good."""
    for row in overview.queues:
        if row.oldest_at is not None:
            seconds = (overview.at - row.oldest_at).total_seconds()
            is_left = row.paused or (not row.in_flight and seconds > ABANDONED)
            yield Oldest(seconds, url_for("queues.one", kind=row.kind, name=row.name), is_left)
    # Also those that are not on the page, so that the order of rows does not change the oldest message.
    for one in celery.counted if celery is not None else ():
        if one.oldest_age is not None:
            is_left = one.consumers == 0 or one.name in paused
            yield Oldest(one.oldest_age, url_for("queues.celery", name=one.name), is_left)


def _activity(access: Access, span: str) -> ActivitySummary:
    history = access.monitor.history
    try:
        recent = [period.tally for period in history.minutes(FAILING_MINUTES)]
        by_queue: dict[str, list[int]] = {}
        for series, counts in history.counts(CURVE_MINUTES).items():
            before = by_queue.get(series.queue, [0] * CURVE_MINUTES)
            by_queue[series.queue] = [count + minute.executed for count, minute in zip(before, counts, strict=True)]
        return ActivitySummary(
            curves(access, span),
            sum(tally.executed for tally in recent),
            sum(tally.failed for tally in recent),
            by_queue,
            access.monitor.failures.count(),
            worker_states(access.monitor.workers),
        )
    except BROKEN as error:
        # Reports that cannot be read must not hide the queues.
        return ActivitySummary(problem=fault_text(error))


def _recent(rows: Sequence[QueueRow], known: Sequence[RegistryRow]) -> list[tuple[str, str, datetime, str, str]]:
    """Return the latest dead letters of the queues with the most: kind, queue, time, id, reason."""
    dead = [(row, one) for row, one in zip(rows, known, strict=True) if row.dead and not row.error]
    dead.sort(key=lambda pair: -pair[0].dead)
    found: list[tuple[str, str, datetime, str, str]] = []
    for row, one in dead[:MAX_RECENT_OF]:
        # The page of dead letters shows the errors of unreadable queues.
        with Faults().of(one.kind, one.name):
            queue = context().access.catalog.open(one)
            letters = queue.dead_letters(offset=max(0, row.dead - RECENT), limit=RECENT, max_bytes=0)
            found += [(row.kind, row.name, letter.died_at, letter.id, letter.reason) for letter in letters]
    return sorted(found, key=lambda letter: letter[2], reverse=True)[:RECENT]
