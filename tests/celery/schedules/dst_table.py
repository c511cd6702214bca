"""Due times on days when clocks change, of this package and of Celery, as a Markdown table."""

from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import crontab

from redis_queue.basics.times import from_ms, span_text, to_ms
from redis_queue.celery.schedules.calendar import Calendar

RULES = ("*/15 * * * *", "0 * * * *", "30 2 * * *", "0,30 1 * * *", "15 2 * * 0")
CHANGES = {
    "America/Los_Angeles": ("2026-03-08", "2026-11-01"),
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "Europe/Dublin": ("2026-03-29", "2026-10-25"),
    "Australia/Lord_Howe": ("2026-10-04", "2026-04-05"),
    "Africa/Casablanca": ("2026-03-22", "2026-02-15"),
    "Asia/Kolkata": ("2026-03-29",),
}
"""Days when clocks go forward, and back. Kolkata is for comparison: its clocks never change."""

FEW = 2


def dst_table() -> str:
    """Return the rows in which both differ; the times are local, with their offset from UTC."""
    rows = ["| zone | day | rule | redis_queue | Celery |", "|---|---|---|---|---|"]
    for zone, days in CHANGES.items():
        for day in days:
            for rule in RULES:
                ours, celery = (
                    _cell(found, zone, day) for found in (ours_on(rule, zone, day), beat_on(rule, zone, day))
                )
                rows += [f"| {zone} | {day} | `{rule}` | {ours} | {celery} |"] if celery != ours else []
    return "\n".join(rows) + "\n"


def bounds(zone: str, day: str) -> tuple[int, int]:
    """Return the first millisecond of a local day and of the next."""
    first = date.fromisoformat(day)
    start, end = (datetime.combine(at, time(), ZoneInfo(zone)) for at in (first, first + timedelta(days=1)))
    return to_ms(start), to_ms(end)


def ours_on(rule: str, zone: str, day: str, dst: str = "wall") -> list[int]:
    """Return the due times of *rule* on a local day."""
    start, end = bounds(zone, day)
    return Calendar([{"cron": rule}], zone, dst=dst).occurrences(start - 1, end - 1, 2000)  # type: ignore[arg-type]


def beat_on(rule: str, zone: str, day: str) -> list[int]:
    """Return the due times that a crontab of Celery computes, each from the one before, since the day before."""
    start, end = bounds(zone, day)
    return [due for due in _beat(rule, zone, start - 86_400_000, end) if start <= due < end]


def _beat(rule: str, zone: str, since: int, until: int) -> Iterator[int]:
    app = Celery(set_as_current=False)
    app.conf.timezone = zone
    schedule = crontab.from_string(rule)
    schedule.app, now = app, since
    while now < until:
        noted = from_ms(now).astimezone(ZoneInfo(zone))
        schedule.nowfun = lambda noted=noted: noted
        last, delta, _ = schedule.remaining_delta(noted)
        now = to_ms(last + delta)
        yield now


def pause(found: list[int], zone: str, day: str) -> int:
    """Return the longest time between two of *found* on a local day, in ms, its midnights included."""
    times = sorted({*bounds(zone, day), *found})
    return max(later - earlier for earlier, later in pairwise(times))


def _cell(found: list[int], zone: str, day: str) -> str:
    if len(found) > FEW:
        return f"{len(found)} times, at most {span_text(pause(found, zone, day) / 1000)} apart"
    texts = (from_ms(due).astimezone(ZoneInfo(zone)) for due in found)
    return ", ".join(f"{text:%H:%M} {text.isoformat()[-6:]}" for text in texts) or "not due"
