"""Due times compared with brute force, with Celery, and on days when clocks change."""

import itertools
import time
import zoneinfo
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, crontab_parser, schedule, solar
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_queue.basics.times import from_ms, to_ms
from redis_queue.celery.schedules.calendar import Calendar, check_timezone, tzdata_version
from redis_queue.celery.schedules.rules import check_rules, read_exclusions, read_rules
from redis_queue.errors import InvalidValueError
from tests.celery.schedules.dst_table import CHANGES, RULES, beat_on, bounds, dst_table, ours_on, pause
from tests.support.paths import ROOT
from tests.support.wait import must

relaxed = settings(deadline=None, max_examples=100)
MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
START = to_ms(datetime(2026, 1, 1, tzinfo=timezone.utc))

days = [(zone, day) for zone, changes in CHANGES.items() for day in changes]
MIDNIGHT = [("America/Santiago", "2026-09-06"), ("America/Santiago", "2026-04-04"), ("America/Havana", "2026-11-01")]


def ms(text: str) -> int:
    return to_ms(datetime.fromisoformat(text))


def texts(found: list[int], zone: str) -> list[str]:
    return [from_ms(due).astimezone(ZoneInfo(zone)).isoformat(timespec="minutes") for due in found]


@pytest.mark.parametrize(
    ("zone", "day", "rule", "ours", "celery"),
    [
        ("America/Los_Angeles", "2026-11-01", "*/15 * * * *", (100, 15), (96, 75)),
        ("America/Los_Angeles", "2026-11-01", "0 * * * *", (25, 60), (24, 120)),
        ("America/Los_Angeles", "2026-03-08", "*/15 * * * *", (92, 15), (92, 15)),
        ("Europe/Berlin", "2026-10-25", "*/15 * * * *", (100, 15), (96, 75)),
        ("Europe/Dublin", "2026-10-25", "0 * * * *", (25, 60), (24, 120)),
        ("Australia/Lord_Howe", "2026-04-05", "*/15 * * * *", (98, 15), (96, 45)),
        ("Africa/Casablanca", "2026-02-15", "0 * * * *", (25, 60), (24, 120)),
        ("Asia/Kolkata", "2026-03-29", "*/15 * * * *", (96, 15), (96, 15)),
    ],
)
def test_wildcards_do_not_pause_when_clocks_change(
    zone: str, day: str, rule: str, ours: tuple[int, int], celery: tuple[int, int]
) -> None:
    for found, (count, minutes) in ((ours_on(rule, zone, day), ours), (beat_on(rule, zone, day), celery)):
        assert (len(found), pause(found, zone, day) // MINUTE) == (count, minutes)


@pytest.mark.parametrize(
    ("zone", "day", "rule", "ours", "celery"),
    [
        ("America/Los_Angeles", "2026-03-08", "30 2 * * *", ["03:00-07:00"], ["03:30-07:00"]),
        ("America/Los_Angeles", "2026-03-08", "15 2 * * 0", ["03:00-07:00"], ["03:15-07:00"]),
        ("America/Los_Angeles", "2026-11-01", "0,30 1 * * *", ["01:00-07:00", "01:30-07:00"], None),
        ("Europe/Berlin", "2026-03-29", "30 2 * * *", ["03:00+02:00"], ["03:30+02:00"]),
        ("Europe/Berlin", "2026-10-25", "30 2 * * *", ["02:30+02:00"], None),
        ("Europe/Dublin", "2026-03-29", "0,30 1 * * *", ["02:00+01:00"], None),
        ("Australia/Lord_Howe", "2026-10-04", "15 2 * * 0", ["02:30+11:00"], ["02:45+11:00"]),
        ("Africa/Casablanca", "2026-03-22", "30 2 * * *", ["03:00+01:00"], ["03:30+01:00"]),
    ],
)
def test_fixed_times_are_due_once_when_clocks_change(
    zone: str, day: str, rule: str, ours: list[str], celery: list[str] | None
) -> None:
    assert texts(ours_on(rule, zone, day), zone) == [f"{day}T{text}" for text in ours]
    assert texts(beat_on(rule, zone, day), zone) == [f"{day}T{text}" for text in celery or ours]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("zone", "day"), days)
def test_as_celery_is_what_beat_does(zone: str, day: str, rule: str) -> None:
    assert ours_on(rule, zone, day, dst="celery") == beat_on(rule, zone, day)


@pytest.mark.parametrize(
    "rule", ["*/15 * * * *", "*/10 3-5 * * *", "*/20 2 * * *", "5,35 */2 * * *", "7 * * * *", "* 1-3 * * *"]
)
@pytest.mark.parametrize(("zone", "day"), days + MIDNIGHT)
def test_wildcards_are_due_at_each_real_minute(zone: str, day: str, rule: str) -> None:
    minute, hour, *_ = rule.split()
    minutes, hours = crontab_parser(60).parse(minute), crontab_parser(24).parse(hour)
    start, end = bounds(zone, day)
    real = [
        due
        for due in range(start - start % MINUTE, end, MINUTE)
        if (at := from_ms(due).astimezone(ZoneInfo(zone))).minute in minutes and at.hour in hours
    ]
    assert ours_on(rule, zone, day) == real


@pytest.mark.parametrize("rule", ["30 2 * * *", "0 0 * * *", "59 23 * * *", "10 1 * * *"])
@pytest.mark.parametrize(("zone", "day"), days + MIDNIGHT)
def test_fixed_times_are_due_once_a_day(zone: str, day: str, rule: str) -> None:
    around = [ours_on(rule, zone, str(date.fromisoformat(day) + timedelta(days=number))) for number in (-1, 0, 1)]
    assert [len(found) for found in around] == [1, 1, 1]


@pytest.mark.parametrize("dst", ["wall", "celery"])
@pytest.mark.parametrize(("zone", "day"), days + MIDNIGHT)
@pytest.mark.parametrize("rule", [*RULES, "59 1 * * *", "*/7 1,2 * * *", "0 12 29 2 *"])
def test_due_times_never_go_back(zone: str, day: str, rule: str, dst: Any) -> None:
    calendar = Calendar([{"cron": rule}], zone, dst=dst)
    start, end = bounds(zone, day)
    last = 0
    for after in range(start - HOUR, end + HOUR, 5 * MINUTE - 1):
        due = must(calendar.next(after))
        assert due > after
        assert due >= last
        last = due


def test_the_page_has_the_cases_in_which_celery_differs() -> None:
    page = (ROOT / "docs" / "schedules.md").read_text("utf-8")
    assert dst_table() in page
    assert (
        "| America/Los_Angeles | 2026-11-01 | `*/15 * * * *` | 100 times, at most 15 min apart "
        "| 96 times, at most 1 h 15 min apart |\n" in page
    )


@pytest.mark.parametrize(
    ("rule", "after", "due"),
    [
        ("0 4 13 * 5", "2026-02-13T12:00+00:00", "2026-02-20T04:00+00:00"),
        (crontab(0, 4, "fri", 13), "2026-02-13T12:00+00:00", "2026-03-13T04:00+00:00"),
        (crontab(0, 0, 0, 29, 2), "2026-01-01T00:00+00:00", "2032-02-29T00:00+00:00"),
        ("30 15 10 * * *", "2026-01-01T10:15:30+00:00", "2026-01-02T10:15:30+00:00"),
        ("0 0 L * *", "2028-02-01T00:00+00:00", "2028-02-29T00:00+00:00"),
        ("0 0 29 2 *", "2096-03-01T00:00+00:00", "2104-02-29T00:00+00:00"),
        ("0 0 1 1 *", "9900-01-01T00:00+00:00", None),
        ("0 0 1 1 *", "1960-01-01T00:00+00:00", "1971-01-01T00:00+00:00"),
    ],
)
@pytest.mark.parametrize("dst", ["wall", "celery"])
def test_cron_rules(rule: Any, after: str, due: str | None, dst: Any) -> None:
    calendar = Calendar(read_rules(rule), "UTC", dst=dst)
    assert calendar.next(ms(after)) == (due and ms(due))


@pytest.mark.parametrize(
    ("length", "after", "anchor", "due"),
    [
        (1000, 5000, None, 6000),
        (1000, 5000, 0, 6000),
        (1000, 5999, 0, 6000),
        (1000, 5400, 300, 6300),
        (1000, 5000, 9300, 5300),
        (1000, 8299, 9300, 8300),
        (1000, 9299, 9300, 9300),
    ],
)
def test_intervals_are_multiples_from_their_anchor(length: int, after: int, anchor: int | None, due: int) -> None:
    assert Calendar([{"every": length}], "Asia/Kolkata").next(after, anchor) == due


@pytest.mark.parametrize(
    ("length", "zone", "anchor", "dues"),
    [
        (10, "UTC", "2026-01-01T00:00:03+00:00", ["2026-01-01T00:00:13+00:00", "2026-01-01T00:00:23+00:00"]),
        (90, "UTC", "2026-01-01T00:00:10+00:00", ["2026-01-01T00:01+00:00", "2026-01-01T00:03+00:00"]),
        (7200, "Asia/Kolkata", "2026-01-01T10:45+05:30", ["2026-01-01T12:00+05:30", "2026-01-01T14:00+05:30"]),
        (86400, "Europe/Berlin", "2026-03-28T23:30+01:00", ["2026-03-29T00:00+01:00", "2026-03-30T00:00+02:00"]),
        (86400, "Europe/Berlin", "2026-10-24T23:30+02:00", ["2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00"]),
    ],
)
def test_relative_intervals_are_rounded_down_to_their_unit(
    length: int, zone: str, anchor: str, dues: list[str]
) -> None:
    calendar = Calendar([{"every": length * 1000, "relative": True}], zone)
    assert calendar.occurrences(ms(anchor), START + 400 * DAY, len(dues)) == [ms(due) for due in dues]


@pytest.mark.parametrize(
    ("place", "after", "due"),
    [
        (["sunset", 51.5, -0.1], "2026-06-21T12:00+00:00", "2026-06-21T20:21+00:00"),
        (["sunset", 51.5, -0.1], "2026-06-21T20:22+00:00", "2026-06-22T20:21+00:00"),
        (["solar_noon", 0, 0], "2026-03-20T00:00+00:00", "2026-03-20T12:07+00:00"),
        (["sunrise", 69.6, 18.9], "2026-12-01T00:00+00:00", "2027-01-15"),
        (["sunrise", 89, 0], "2026-03-25T00:00+00:00", "2026-09"),
    ],
)
def test_solar_events_are_found_after_polar_nights(place: list[Any], after: str, due: str) -> None:
    found = must(Calendar(check_rules([{"solar": place}]), "Europe/Berlin").next(ms(after)))
    assert from_ms(found).isoformat().startswith(due.partition("+")[0])


def test_an_event_that_never_happens_is_none() -> None:
    assert Calendar([{"solar": ["sunset", 90, 0]}], "UTC").next(START) is None


@pytest.mark.parametrize("event", ["sunrise", "solar_noon", "sunset", "dusk_civil"])
def test_solar_events_are_those_of_celery(event: str) -> None:
    found = Calendar([{"solar": [event, 51.5, -0.1]}], "UTC").occurrences(START, START + 30 * DAY, 100)
    assert len(found) == 30
    for due in found:
        noted = from_ms(due - HOUR)
        wait = solar(event, 51.5, -0.1, nowfun=lambda noted=noted: noted).remaining_estimate(noted)
        assert abs(wait - timedelta(hours=1)) < timedelta(seconds=1)


def test_each_solar_event_is_due_once() -> None:
    calendar = Calendar([{"solar": ["sunrise", 69.6, 18.9]}], "UTC")
    found = calendar.occurrences(START, START + 365 * DAY, 500)
    # Two months without night and a month and a half without day.
    assert 245 < len(found) < 260
    assert min(later - earlier for earlier, later in itertools.pairwise(found)) > 22 * HOUR
    # The times do not depend on where the search starts.
    assert [calendar.next(due - 1) for due in found] == found


def test_excluded_dates_are_local() -> None:
    calendar = Calendar(read_rules(["0 */6 * * *", 3600 * 5]), "Asia/Kolkata", exclude=["2026-01-02", "2026-01-03"])
    found = calendar.occurrences(ms("2026-01-01T00:00+05:30") - 1, ms("2026-01-05T00:00+05:30"), 100)
    dates = {text[:10] for text in texts(found, "Asia/Kolkata")}
    assert dates == {"2026-01-01", "2026-01-04", "2026-01-05"}
    assert ms("2026-01-04T00:00+05:30") in found


MONDAYS = [date(2026, 1, 5) + timedelta(weeks=number) for number in range(400)]
TOGETHER = [date(2026, 1, 1) + timedelta(days=number) for number in range(400)]


@pytest.mark.parametrize("dst", ["wall", "celery"])
@pytest.mark.parametrize(
    ("days", "rules", "free"),
    [
        (TOGETHER, [f"{minute} * * * *" for minute in range(10)], "2027-02-05"),
        (TOGETHER, [timedelta(minutes=minute) for minute in range(1, 11)], "2027-02-05"),
        (TOGETHER, [schedule(timedelta(hours=hour), relative=True) for hour in range(1, 11)], "2027-02-05"),
        (TOGETHER, [solar("sunset", 51.5, longitude) for longitude in range(10)], "2027-02-05"),
        (MONDAYS, [f"{minute} 3 * * 1" for minute in range(10)], "2033-09-05"),
        (MONDAYS, [crontab(minute, 3, "mon", "*", "*/3") for minute in range(10)], "2033-10-03"),
    ],
    ids=["days", "intervals", "relative", "solar", "Mondays", "some Mondays"],
)
def test_a_due_time_costs_the_same_whatever_is_excluded(
    days: list[date], rules: list[Any], free: str, dst: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    plain = Calendar._step

    def step(self: Calendar, rule: Any, after: int, anchor: int) -> int | None:
        steps.append(after)
        return plain(self, rule, after, anchor)

    monkeypatch.setattr(Calendar, "_step", step)
    found = Calendar(read_rules(rules), "Europe/Berlin", exclude=read_exclusions(days), dst=dst)
    first = must(found.next(START, START))
    assert from_ms(first).astimezone(ZoneInfo("Europe/Berlin")).date().isoformat() == free
    # Two or three for each rule; with every excluded day searched, it would be 4,000.
    assert len(steps) <= 3 * len(rules)
    steps.clear()
    many = found.occurrences(first, first + 100 * DAY, 100, START)
    # A rule is asked again only when its own due time has passed.
    assert len(steps) <= 3 * len(many) + len(rules)


def test_a_rule_whose_dates_are_all_excluded_ends() -> None:
    years = [f"{year}-02-29" for year in range(2028, 2100, 4)]
    assert Calendar(read_rules("0 0 29 2 *"), "UTC", exclude=years).next(START) is None


zones = st.sampled_from([*CHANGES, "UTC", "America/Santiago"])
numbers = st.one_of(st.just("*"), st.integers(1, 30).map("*/{}".format))


def fields(low: int, high: int) -> st.SearchStrategy[Any]:
    return numbers | st.integers(low, high) | st.sets(st.integers(low, high), min_size=1, max_size=5)


crontabs = st.builds(
    crontab,
    fields(0, 59),
    fields(0, 23),
    fields(0, 6) | st.just("fri-mon"),
    fields(1, 28),
    fields(1, 12) | st.just("nov-feb"),
)
moments = st.integers(START, START + 365 * DAY) | st.sampled_from(days).flatmap(
    lambda at: st.integers(bounds(*at)[0] - 4 * HOUR, bounds(*at)[1] + 4 * HOUR)
)
some_rules = st.lists(
    crontabs.map(read_rules)
    | st.integers(50, 10 * DAY).map(lambda length: [{"every": length}])
    | st.integers(60_000, 10 * DAY).map(lambda length: [{"every": length, "relative": True}])
    | st.sampled_from(["*/7 * * * * *", "30 2 * * *", "0 0 L * *", "15 1 1 * MON", "0,30 1 * * *"]).map(read_rules),
    min_size=1,
    max_size=3,
).map(lambda several: [rule for rules in several for rule in rules])


@relaxed
@given(crontabs, st.integers(1, 12))
def test_a_crontab_is_due_when_celery_says_in_utc(rule: Any, month: int) -> None:
    start = to_ms(datetime(2026, month, 1, tzinfo=timezone.utc))
    expected = [
        to_ms(day.replace(hour=hour, minute=minute))
        for day in (from_ms(start + number * DAY) for number in range(31))
        if day.day in rule.day_of_month and day.month in rule.month_of_year and day.isoweekday() % 7 in rule.day_of_week
        for hour in sorted(rule.hour)
        for minute in sorted(rule.minute)
    ]
    for dst in ("wall", "celery"):
        calendar = Calendar(read_rules(rule), "UTC", dst=dst)  # type: ignore[arg-type]
        assert calendar.occurrences(start - 1, start + 31 * DAY - 1, 300) == expected[:300]


@relaxed
@given(some_rules, zones, st.sampled_from(["wall", "celery"]), st.tuples(moments, moments), moments)
def test_next_is_later_and_never_goes_back(rules: Any, zone: str, dst: Any, two: Any, anchor: int) -> None:
    calendar = Calendar(rules, zone, dst=dst)
    early, late = sorted(two)
    first, second = calendar.next(early, anchor), calendar.next(late, anchor)
    assert first is not None
    assert second is not None
    assert first > early
    assert second > late
    assert first <= second


@relaxed
@given(some_rules, zones, moments)
def test_occurrences_are_those_of_all_rules_together(rules: Any, zone: str, after: int) -> None:
    together = Calendar(rules, zone).occurrences(after, after + 30 * DAY, 40)
    until = together[-1] if len(together) == 40 else after + 30 * DAY
    alone = [Calendar([rule], zone).occurrences(after, until, 41) for rule in rules]
    assert together == sorted(set().union(*alone))[:40]


@pytest.mark.parametrize(
    ("rule", "zone"),
    [
        ({"cron": "0 0 */28 2 SUN#5"}, "Europe/Berlin"),
        ({"cron": "0 0 */31 * MON"}, "Europe/Berlin"),
        ({"cron": "* * * * *", "weekdays": [1]}, "Europe/Berlin"),
        ({"cron": "* * * * * *"}, "Europe/Berlin"),
        ({"cron": "58,59 58,59 22,23 29 2 *"}, "Europe/Berlin"),
        ({"cron": "58,59 58,59 22,23 29 2 *"}, "Australia/Lord_Howe"),
        ({"every": 50}, "Europe/Berlin"),
    ],
)
@pytest.mark.parametrize("dst", ["wall", "celery"])
def test_one_call_is_cheap_for_hostile_rules(rule: Any, zone: str, dst: Any) -> None:
    [rule] = check_rules([rule])
    first = date(2026, 1, 1)
    calendar = Calendar([rule], zone, [str(first + timedelta(days=number)) for number in range(400)], dst)
    before = time.process_time()
    calendar.next(START)
    assert time.process_time() - before < 1


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires"])
def test_time_zones_are_known(name: str) -> None:
    assert check_timezone(name) == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Europe/Berln", "did you mean 'Europe/Berlin'"),
        ("europe/berlin", "did you mean 'Europe/Berlin'"),
        ("Europe", "unknown"),
        ("../../etc/passwd", "unknown"),
        ("right/UTC", "unknown"),
        ("localtime", "unknown"),
        ("", "unknown"),
        ("x" * 65, "must be a name"),
        (None, "must be a name"),
        (timezone.utc, "must be a name"),
    ],
)
def test_unknown_time_zones_are_refused(name: Any, problem: str) -> None:
    with pytest.raises(InvalidValueError, match=problem):
        check_timezone(name)
    with pytest.raises(InvalidValueError, match=problem):
        Calendar([{"every": 1000}], name)


def test_unknown_dst_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="must be 'wall' or 'celery'"):
        Calendar([{"every": 1000}], "UTC", dst="beat")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [("tzdata.zi", "# version 2030a\nR x", "2030a"), ("+VERSION", "2030b\n", "2030b"), ("other", "2030c", "")],
)
def test_the_version_of_the_system_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, text: str, version: str
) -> None:
    (tmp_path / "UTC").write_bytes(b"TZif")
    (tmp_path / file).write_text(text)
    monkeypatch.setattr(zoneinfo, "TZPATH", (str(tmp_path / "none"), str(tmp_path)))
    assert tzdata_version() == version


def test_without_data_of_the_system_the_package_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import tzdata

    monkeypatch.setattr(zoneinfo, "TZPATH", ())
    assert tzdata_version() == tzdata.IANA_VERSION
