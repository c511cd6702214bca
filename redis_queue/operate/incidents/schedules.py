"""Incidents of schedules: missed, unsent or paused ones, and those that nobody sends or no worker gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from shlex import quote
from typing import Final

from redis_queue.basics.options import counted, some_of
from redis_queue.basics.times import from_ms, span_text, to_ms
from redis_queue.operate.incidents.queues import similar
from redis_queue.operate.incidents.situation import Incident, Situation, grouped, page_of
from redis_queue.operate.schedules import ScheduleRow
from redis_queue.schedules.state import Event

OVERDUE: Final = 30.0
"""Seconds by which a schedule is overdue before that is an incident."""

RECENT: Final = timedelta(hours=1)
"""Time in which skipped runs are an incident."""

MISSED: Final = ("late", "overlap")
"""Reasons of skipped runs that nobody asked for."""

NAMED: Final = 3
"""Maximum number of schedules that a cause names."""


def missed_schedules(now: Situation) -> Iterator[Incident]:
    """All runs of schedules are sent when they are due."""
    for row in now.schedules:
        late, skips = row.overdue(now.at), _skips(now, row)
        if _error(row) is not None or not (late > OVERDUE or skips):
            continue
        told = [
            f"{counted(count, 'run')} skipped within the last hour ({text})" for text, count in _counts(skips).items()
        ]
        if late > OVERDUE:
            waits = row.schedule.definition is not None and row.schedule.definition.overlap == "queue"
            blocks = f", and waits for the run {row.schedule.running}" if waits and row.schedule.running else ""
            told.insert(0, f"its next run is due since {span_text(late, parts=1)}{blocks}")
        since = [from_ms(event.at) for event in skips] + ([from_ms(row.due)] if late > OVERDUE else [])
        yield Incident(
            row.name,
            "warning",
            f"schedule {row.name}: {'; '.join(told)}",
            f"see its runs: redis-queue schedules show {quote(row.name)}; send missed ones with schedules backfill",
            page_of("schedule", name=row.name),
            min(since),
            sum(event.count for event in skips) + (late > OVERDUE),
        )


def unsent_schedules(now: Situation) -> Iterator[Incident]:
    """Every schedule can be sent."""
    for row in now.schedules:
        found = _error(row)
        if row.error:
            cause, since, advice = row.error, None, "mend its definition: put it again, or delete it"
        elif found is not None:
            cause, since = found.text, from_ms(found.at)
            advice = "mend the cause; the schedule is tried again by itself, at the latest after an hour"
        else:
            continue
        told, page = f"schedule {row.name} is not sent: {cause}", page_of("schedule", name=row.name)
        yield Incident(row.name, "error", told, advice, page, since, 1)


def failed_schedules(now: Situation) -> Iterator[Incident]:
    """No schedule is paused because its runs failed."""
    for row in now.schedules:
        schedule = row.schedule
        most = schedule.definition.pause_after_failures if schedule.definition else None
        if row.state == "paused" and most and schedule.failures >= most:
            at = next((event.at for event in row.events if event.kind == "paused"), None)
            yield Incident(
                row.name,
                "warning",
                f"schedule {row.name} is paused: {counted(schedule.failures, 'run')} of {schedule.task} in a row "
                "failed",
                f"see why: redis-queue failures list --task {quote(schedule.task)}; then redis-queue schedules resume "
                f"{quote(row.name)}",
                page_of("schedule", name=row.name),
                None if at is None else from_ms(at),
                schedule.failures,
            )


def undispatched_schedules(now: Situation) -> Iterator[Incident]:
    """A dispatcher sends the schedules."""
    active = [row for row in now.schedules if row.state == "active"]
    if active and now.schedule_dispatchers == 0:
        late = max(active, key=lambda row: row.overdue(now.at))
        names = some_of([row.name for row in active], NAMED)
        yield Incident(
            "schedules",
            "error",
            f"no dispatcher was seen within the last minute, and there are active schedules: {names}",
            "start a worker whose app has DurableTasks(app), or run celery -A app redis-queue dispatch",
            "schedules",
            from_ms(late.due) if late.overdue(now.at) else None,
            len(active),
        )


def unread_schedules(now: Situation) -> Iterator[Incident]:
    """A worker consumes the queue of every schedule."""
    consumed = {*now.readers, *(row.name for row in now.celery_queues if row.consumers), *(now.read_elsewhere or ())}
    active = (row for row in now.schedules if row.queue and row.state == "active" and row.queue not in consumed)
    # Without any reports nobody knows what workers consume.
    unread = grouped((row.queue, row.name) for row in active if consumed)
    for queue, names in unread.items():
        (_, hint), told = similar(queue, consumed, unread), some_of(names, NAMED)
        yield Incident(
            queue,
            "warning",
            f"schedules send to the queue {queue}, and no worker that reports consumes it: {told}{hint}",
            f"start a worker with -Q {quote(queue)}, or change the queue of the schedules",
            "schedules",
            hits=len(names),
        )


def refused_schedules(now: Situation) -> Iterator[Incident]:
    """The schedules that apps declare are stored."""
    for app, refused in now.refused_schedules.items():
        for name, why in refused.items():
            yield Incident(
                name,
                "error",
                f"schedule {name} of the beat_schedule of {app} is not stored: {why}",
                "mend it in the code of the app, and restart a worker or run redis-queue -A APP schedules declare",
                "schedules",
                hits=1,
            )


def _skips(now: Situation, row: ScheduleRow) -> list[Event]:
    """Return the events of runs that were missed lately."""
    since = to_ms(now.at - RECENT)
    return [it for it in row.events if it.kind == "skipped" and it.text in MISSED and it.at >= since]


def _counts(skips: list[Event]) -> Counter[str]:
    found = Counter[str]()
    for event in skips:
        found["too late" if event.text == "late" else "the run before had not ended"] += event.count
    return found


def _error(row: ScheduleRow) -> Event | None:
    """Return the last error of sending, if nothing was sent since."""
    last = next((event for event in row.events if event.kind in ("sent", "error", "skipped")), None)
    return last if last is not None and last.kind == "error" and row.state == "active" else None
