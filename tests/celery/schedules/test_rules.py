"""Rules are read from what users write, checked, and refused with one clear error."""

from __future__ import annotations

import json
import sys
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from celery.schedules import crontab, schedule, solar
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_queue.celery.schedules import calendar
from redis_queue.celery.schedules.calendar import Calendar
from redis_queue.celery.schedules.rules import check_rules, read_exclusions, read_rules, rules_text
from redis_queue.errors import ConfigurationError, InvalidDelayError, InvalidValueError

relaxed = settings(deadline=None, max_examples=200)


class Own(crontab):  # type: ignore[misc]
    """A subclass: its behaviour cannot be stored."""


@pytest.mark.parametrize(
    ("value", "rule", "text"),
    [
        (10, {"every": 10_000}, "every 10 s"),
        (0.05, {"every": 50}, "every 50 ms"),
        (1.0005, {"every": 1001}, "every 1001 ms"),
        (timedelta(hours=36), {"every": 129_600_000}, "every 1 d 12 h"),
        ("every 10 s", {"every": 10_000}, "every 10 s"),
        ("every 2h", {"every": 7_200_000}, "every 2 h"),
        ("every 1d12h", {"every": 129_600_000}, "every 1 d 12 h"),
        ("every 5 min", {"every": 300_000}, "every 5 min"),
        (" Every 1 h 30 m", {"every": 5_400_000}, "every 1 h 30 min"),
        ("every 1.5 s", {"every": 1500}, "every 1500 ms"),
        ("every 250 ms", {"every": 250}, "every 250 ms"),
        (schedule(60), {"every": 60_000}, "every 1 min"),
        (
            schedule(timedelta(days=1), relative=True),
            {"every": 86_400_000, "relative": True},
            "every 1 d, rounded to its unit",
        ),
        ("30 2 * * *", {"cron": "30 2 * * *"}, "30 2 * * *"),
        (" 30  2 * * mon-fri ", {"cron": "30 2 * * mon-fri"}, "30 2 * * mon-fri"),
        ("*/10 * * * * *", {"cron": "*/10 * * * * *"}, "*/10 * * * * *"),
        ("0 0 L * *", {"cron": "0 0 L * *"}, "0 0 L * *"),
        ("0 4 13 * 5", {"cron": "0 4 13 * 5"}, "0 4 13 * 5"),
        (crontab(), {"cron": "* * * * *"}, "* * * * *"),
        (crontab("*/15", "*/2"), {"cron": "*/15 */2 * * *"}, "*/15 */2 * * *"),
        (crontab(0, 22, "mon-wed"), {"cron": "0 22 * * 1-3"}, "0 22 * * 1-3"),
        (crontab({5, 50}, "22-2", nowfun=len), {"cron": "5,50 0-2,22,23 * * *"}, "5,50 0-2,22,23 * * *"),
        (crontab([1, 2], month_of_year="nov-jan"), {"cron": "1,2 * * 1,11,12 *"}, "1,2 * * 1,11,12 *"),
        (crontab(0, 4, "fri,sat", 13), {"cron": "0 4 13 * *", "weekdays": [5, 6]}, "0 4 13 * * only on Fri, Sat"),
        (crontab(0, 4, "0-6", 13), {"cron": "0 4 13 * *"}, "0 4 13 * *"),
        (solar("sunset", 51.5, -0.1), {"solar": ["sunset", 51.5, -0.1]}, "sunset at 51.5, -0.1"),
    ],
)
def test_user_input_becomes_data(value: Any, rule: dict[str, Any], text: str) -> None:
    rules = read_rules(value)
    assert rules == [rule]
    assert rules_text(rules) == text
    assert check_rules(json.loads(json.dumps(rules))) == rules
    assert read_rules(rules) == rules
    assert read_rules(text) == rules


@pytest.mark.parametrize("rule", [{"x": 1}, 1, "a", {"solar": [1]}, {"every": "a"}, {"cron": "a", "weekdays": [99]}])
def test_an_invalid_rule_of_another_program_is_shown_as_data(rule: Any) -> None:
    assert rules_text([rule]) == repr(rule)


def test_several_rules_stay_in_order() -> None:
    rules = read_rules([10, "30 2 * * *", solar("sunset", 51.5, -0.1)])
    assert rules_text(rules) == "every 10 s; 30 2 * * *; sunset at 51.5, -0.1"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (0, "every=0 ms: must be 50 ms to ten years"),
        (0.049, "must be 50 ms"),
        (-1, "must be >= 0"),
        (schedule(timedelta(seconds=-1)), "must be >= 0"),
        (schedule(), "must be a number"),
        (True, "must be a number"),
        (float("nan"), "must be finite"),
        (11 * 366 * 86400, "at most ten years"),
        ("every 99999999d", "at most ten years"),
        ("every", "expected a span"),
        ("every -5s", "expected a span"),
        ("every 5 weeks", "expected a span"),
    ],
)
def test_invalid_intervals_are_refused(value: Any, problem: str) -> None:
    with pytest.raises(InvalidDelayError, match=problem):
        read_rules(value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (Own(), "Own.*only data is stored|only data is stored"),
        (crontab, "only data is stored"),
        (lambda: 5, "only data is stored"),
        (None, "only data is stored"),
        ([["* * * * *"]], "only data is stored"),
        ("proj.schedules:nightly", "only data is stored"),
        ("@daily", "five cron fields"),
        ("* * * *", "five cron fields"),
        ("* * * * * * *", "five cron fields"),
        ("* * * * " + "1," * 100 + "1", "at most 200 characters"),
        ("\uff10 0 * * *", "five cron fields"),
        ("60 * * * *", "Bad minute"),
        ("0 0 31 2 *", "Bad day-of-month"),
        ("0 0 */31 2 MON#5", "due on no date of 50 years"),
        ("0 0 */31 * MON#5", "due on no date of 50 years"),
        (crontab(minute=[]), "minute=.*must not be empty"),
        ("sunset at 51.5", "an event, a latitude and a longitude"),
        ("sunset at home, alone", "latitude and longitude must be numbers"),
        ("0 4 13 * * only on Fri, Freitag", "weekdays=.*must be a list of numbers"),
        ([], "must be 1 to 10 rules"),
        ([1] * 11, "must be 1 to 10 rules"),
    ],
)
def test_invalid_and_impossible_rules_are_refused(value: Any, problem: str) -> None:
    with pytest.raises(InvalidValueError, match=problem):
        read_rules(value)


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        "30 2 * * *",
        {"every": 1000},
        [{}],
        ["30 2 * * *"],
        [{"every": 1000, "cron": "* * * * *"}],
        [{"every": 1000, "later": 1}],
        [{"every": 1000, "relative": 1}],
        [{"every": 1000.0}],
        [{"every": True}],
        [{"every": 49}],
        [{"every": 2**70}],
        [{"relative": True}],
        [{"cron": 5}],
        [{"cron": "30 2\n* * *"}],
        [{"cron": "30  2 * * *"}],
        [{"cron": "* * * * *", "weekdays": []}],
        [{"cron": "* * * * *", "weekdays": [7]}],
        [{"cron": "* * * * *", "weekdays": [True]}],
        [{"cron": "* * * * *", "weekdays": "1"}],
        [{"cron": "* * * * *", "weekdays": [1] * 8}],
        [{"cron": "* * * * 5", "weekdays": [1]}],
        [{"cron": "* * * * * *", "weekdays": [1]}],
        [{"solar": "sunset"}],
        [{"solar": ["sunset", 1]}],
        [{"solar": ["sunset", "1", 2]}],
        [{"solar": ["sunset", float("nan"), 2]}],
        [{"solar": ["sunset", 91, 2]}],
        [{"solar": ["__class__", 1, 2]}],
        [{"solar": [["sunset"], 1, 2]}],
        [{"every": 1000}] * 21,
    ],
)
def test_untrusted_data_is_refused(data: Any) -> None:
    with pytest.raises(InvalidValueError):
        check_rules(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["every", "cron", "solar"]), inner),
    max_leaves=6,
)
cron_texts = st.lists(st.text("0123456789*,/-#LWMONFRIjan", min_size=1, max_size=8), min_size=5, max_size=6).map(
    " ".join
)


@relaxed
@given(json_values | cron_texts | cron_texts.map(lambda text: [{"cron": text}]))
def test_anything_is_read_or_refused(value: Any) -> None:
    for read in (read_rules, check_rules):
        try:
            rules = read(value)
        except InvalidValueError:
            continue
        assert check_rules(json.loads(json.dumps(rules))) == rules
        assert Calendar(rules, "Europe/Berlin").next(1_770_000_000_000) is not None


@pytest.mark.parametrize(
    ("value", "dates"),
    [
        ("2026-12-25", ["2026-12-25"]),
        ([], []),
        ({date(2026, 12, 26), "2026-12-25", "2026-12-26"}, ["2026-12-25", "2026-12-26"]),
    ],
)
def test_exclusions_are_sorted_dates(value: Any, dates: list[str]) -> None:
    assert read_exclusions(value) == dates


@pytest.mark.parametrize(
    "value",
    [None, len, "holidays.Germany", "2026-02-30", "20261225", "2026-W01-1", datetime(2026, 1, 1), 5, [["2026-12-25"]]],
)
def test_exclusions_are_only_dates(value: Any) -> None:
    with pytest.raises(InvalidValueError, match="only dates"):
        read_exclusions(value)


def test_exclusions_are_limited() -> None:
    days = [date(2026, 1, 1) + timedelta(days=number) for number in range(401)]
    assert len(read_exclusions(days[1:])) == 400
    with pytest.raises(InvalidValueError, match="at most 400 dates, got 401"):
        read_exclusions(days)


@pytest.mark.parametrize(
    ("module", "rule", "hint"),
    [
        ("cronsim", {"cron": "* * * * *"}, r"pip install 'celery-redis-queue\[schedules\]'"),
        ("ephem", {"solar": ["sunset", 51.5, -0.1]}, "pip install ephem"),
    ],
)
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, module: str, rule: Any, hint: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    calendar._cronsim.cache_clear()
    with pytest.raises(ConfigurationError, match=hint):
        check_rules([rule])
    assert check_rules([{"every": 1000}]) == [{"every": 1000}]
