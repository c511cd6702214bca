"""Imported schedules are due when their old scheduler would have sent them, run by run for a week of virtual time."""

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import time_machine
from celery import Celery
from celery.schedules import crontab, schedule
from redbeat import RedBeatSchedulerEntry

from redis_queue.celery.schedules.redbeat import RedBeat
from redis_queue.celery.schedules.runs import calendar_of
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.celery.schedules.transfer import SourceSchedule
from redis_queue.schedules.state import State, plan

UTC = timezone.utc
AUTUMN = datetime(2026, 10, 23, 10, 7, 13, tzinfo=UTC)
"""Two days before clocks are set back in Europe."""

WEEK = timedelta(days=7)
WEEKS = [
    ("UTC", datetime(2026, 11, 10, 10, 7, 13, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 3, 26, 10, 7, 13, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 10, 29, 10, 7, 13, tzinfo=UTC)),
]
"""An ordinary week, one in which clocks are set forward, and one in which they are set back."""

CRONTABS: list[dict[str, Any]] = [
    {"minute": "*/30"},
    {"minute": "0", "hour": "3"},
    {"minute": "30", "hour": "2"},
    {"minute": 5, "hour": "*/2"},
    {"minute": "0,20,40", "hour": "8-17", "day_of_week": "mon-fri"},
    {"minute": "59", "hour": "23", "day_of_week": "0"},
    {"minute": "0", "hour": "12", "day_of_week": "sun,3"},
    {"minute": "10", "hour": "1-3"},
    {"minute": "*/40"},
    {"minute": "0", "hour": "0", "day_of_month": "1-31/2"},
    {"minute": "0", "hour": "6", "day_of_month": "10-20", "day_of_week": "fri"},
    {"minute": "0", "hour": "0,12", "month_of_year": "*/2"},
    {"minute": "7", "hour": "7", "month_of_year": "3,10,11"},
]
INTERVALS = [1800, 3600, 5400, 86400, 7 * 3600 + 0.5, 3 * 86400]
RELATIVE = [3600, 86400]
PERIODS = [(30, "minutes"), (90, "minutes"), (7, "hours"), (1, "days"), (25_200_500_000, "microseconds")]
EVENTS = [("sunrise", 51.5, -0.1), ("solar_noon", 35.7, 139.7), ("dusk_civil", -33.9, 18.4)]


def week_of(traveller: Any, start: datetime, entry: Any) -> list[datetime]:
    """Return when a beat that looks at *entry* only when it is due would send it."""
    now, found = start, []
    while now <= start + WEEK:
        traveller.move_to(now)
        due, seconds = entry.is_due()
        if due:
            found.append(now)
            entry = next(entry)
            _, seconds = entry.is_due()
        now += timedelta(seconds=max(seconds, 0.001))
    return found


def ours(source: SourceSchedule, start: datetime) -> list[datetime]:
    """Return the due times for which a dispatcher would send runs."""
    assert source.definition is not None, source.refused
    times, end = calendar_of(source.definition), (start + WEEK).timestamp() * 1000
    assert source.since is not None
    due = source.due or times.next(source.since, source.since)
    state, found = State("0" * 8, due or 0, source.since), []
    while 0 < state.due <= end:
        step = plan(source.definition, state, state.due, times, lambda: True)
        found += [datetime.fromtimestamp(due / 1000, UTC) for due in step.sends]
        state = step.state
    return found


def differences(theirs: list[datetime], ours: list[datetime], tolerance: float) -> list[str]:
    """Return the due times that only one of the two has."""

    def only(mine: list[datetime], other: list[datetime], sign: str) -> list[str]:
        return [
            f"{sign} {at:%a %H:%M:%S}"
            for at in mine
            if not any(abs((at - one).total_seconds()) <= tolerance for one in other)
        ]

    return sorted(only(theirs, ours, "theirs") + only(ours, theirs, "ours"))


def week_differences(sources: dict[str, SourceSchedule], entries: dict[str, Any], start: datetime) -> dict[str, Any]:
    """Return the differences of each schedule; empty if there are runs, and all are equal."""
    count, found = 0, {}
    with time_machine.travel(start, tick=False) as traveller:
        for name, entry in entries.items():
            theirs = week_of(traveller, start, entry)
            count += len(theirs)
            # The time that ephem finds for the sun depends on where it begins to search.
            tolerance = 2 if "solar" in repr(entry.schedule) else 0.002
            if differs := differences(theirs, ours(sources[name], start), tolerance):
                found[f"{name}: {entry.schedule!r}"] = differs[:5]
    assert count > 500
    return found


@pytest.fixture
def beat(app: Celery, redis_url: str) -> Celery:
    """An app whose beat is redbeat."""
    app.conf.update(redbeat_redis_url=redis_url, redis_queue_url=redis_url, redbeat_lock_key=None)
    return app


def redbeat_entries(app: Celery, rules: list[Any]) -> dict[str, Any]:
    found = {}
    for number, rule in enumerate(rules):
        rule.app = app
        entry = RedBeatSchedulerEntry(f"{number:02}", "shop.build", rule, app=app).save()
        found[entry.name] = RedBeatSchedulerEntry.from_key(entry.key, app=app)
        found[entry.name].schedule.app = app
    return found


def named(sources: Iterable[SourceSchedule]) -> dict[str, SourceSchedule]:
    return {source.name: source for source in sources}


@pytest.mark.parametrize(("zone", "start"), WEEKS)
def test_redbeat(beat: Celery, zone: str, start: datetime) -> None:
    beat.conf.timezone = zone
    rules: list[Any] = [crontab(**fields) for fields in CRONTABS]
    rules += [schedule(timedelta(seconds=every)) for every in INTERVALS]
    rules += [schedule(timedelta(seconds=every), relative=True) for every in RELATIVE]
    with time_machine.travel(start, tick=False):
        entries = redbeat_entries(beat, rules)
        sources = named(RedBeat(Schedules(beat), dst="celery"))
    assert len(sources) == 21
    assert week_differences(sources, entries, start) == {}


def test_celery_passes_over_a_repeated_hour_and_we_do_not(beat: Celery) -> None:
    beat.conf.timezone = "Europe/Berlin"
    with time_machine.travel(AUTUMN, tick=False):
        entries = redbeat_entries(beat, [crontab(minute="*/30"), crontab(minute="30", hour="2"), schedule(1800)])
        sources = named(RedBeat(Schedules(beat)))
    (differs,) = week_differences(sources, entries, AUTUMN).values()
    assert differs == ["ours Sun 01:00:00", "ours Sun 01:30:00"]


@pytest.mark.parametrize(("zone", "start"), WEEKS)
def test_django_celery_beat(beat: Celery, beat_tables: Any, zone: str, start: datetime) -> None:
    from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule
    from django_celery_beat.schedulers import ModelEntry

    beat.conf.timezone = zone
    with time_machine.travel(start, tick=False):
        rules: list[dict[str, Any]] = []
        for number, fields in enumerate(CRONTABS):
            own = ("Asia/Kolkata", "Europe/Berlin", "America/New_York", "UTC")[number % 4]
            texts = {name: str(value) for name, value in fields.items()}
            rules.append({"crontab": CrontabSchedule.objects.create(**texts, timezone=own)})
        for every, period in (
            (30, "minutes"),
            (90, "minutes"),
            (7, "hours"),
            (1, "days"),
            (25_200_500_000, "microseconds"),
        ):
            rules.append({"interval": IntervalSchedule.objects.create(every=every, period=period)})
        for event, latitude, longitude in EVENTS:
            place = SolarSchedule.objects.create(event=event, latitude=latitude, longitude=longitude)
            rules.append({"solar": place})
        for number, rule in enumerate(rules):
            PeriodicTask.objects.create(name=f"{number:02}", task="shop.build", **rule)
        sources = named(beat_tables(Schedules(beat), dst="celery"))
        entries = {row.name: ModelEntry(row, app=beat) for row in PeriodicTask.objects.all()}
    assert len(sources) == 21
    assert week_differences(sources, entries, start) == {}
