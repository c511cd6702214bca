"""Durations and time points are converted to whole milliseconds, rounded up."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_queue import DelayQueue, Entry, InvalidDelayError
from redis_queue.basics.times import MAX_DELAY, duration_ms, from_ms, point_ms, span_text

TEN_YEARS = 3653 * 86400
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
NANOSECOND = Fraction(1, 10**9)

relaxed = settings(deadline=None, max_examples=50)
milliseconds = st.integers(0, 4_000_000_000_000)
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@relaxed
@given(st.floats(0, TEN_YEARS) | st.integers(0, TEN_YEARS))
def test_seconds_are_never_rounded_down(seconds: float) -> None:
    result = Fraction(duration_ms(seconds), 1000)
    # A float does not represent 0.3 exactly: its error and one nanosecond are ignored.
    assert result >= Fraction(seconds) - NANOSECOND - Fraction(math.ulp(seconds))
    assert result < Fraction(seconds) + Fraction(1, 1000) + Fraction(math.ulp(seconds))


@relaxed
@given(st.timedeltas(timedelta(0), MAX_DELAY))
def test_a_timedelta_is_rounded_up_exactly(value: timedelta) -> None:
    assert duration_ms(value) == -(-value // timedelta(milliseconds=1))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (1, 1000),
        (0.1 + 0.2, 300),
        (0.3, 300),
        (1.1, 1100),
        (4.35, 4350),
        (0.0001, 1),
        (0.0010001, 2),
        (2.0004, 2001),
        (-0.0, 0),
        (timedelta(microseconds=1), 1),
        (timedelta(microseconds=1001), 2),
        (timedelta(days=389, milliseconds=60), 33_609_600_060),
        (TEN_YEARS, TEN_YEARS * 1000),
        (MAX_DELAY, TEN_YEARS * 1000),
    ],
)
def test_common_durations_are_exact(value: float | timedelta, expected: int) -> None:
    assert duration_ms(value) == expected


@relaxed
@given(
    st.floats(max_value=0, exclude_max=True)
    | st.floats(min_value=TEN_YEARS, exclude_min=True)
    | st.just(math.nan)
    | st.integers(max_value=-1)
    | st.integers(min_value=TEN_YEARS + 1)
    | st.booleans()
    | st.text()
    | st.binary()
    | st.none()
    | st.complex_numbers()
    | st.decimals()
    | st.datetimes()
)
def test_invalid_durations_are_refused_with_name_and_value(value: Any) -> None:
    with pytest.raises(InvalidDelayError) as caught:
        duration_ms(value, name="grace")
    assert str(caught.value).startswith(f"grace={value!r}: ")


@relaxed
@given(st.datetimes(datetime(1970, 1, 2), datetime(2035, 1, 1), timezones=zones))
def test_a_time_point_is_rounded_up_whatever_its_zone(value: datetime) -> None:
    assert point_ms(value) == -(-(value - EPOCH) // timedelta(milliseconds=1))


@relaxed
@given(st.datetimes(datetime(1, 1, 1), datetime(1969, 12, 30), timezones=st.just(timezone.utc)))
def test_a_time_point_before_the_epoch_is_the_epoch(value: datetime) -> None:
    assert point_ms(value) == 0


def test_a_time_point_may_be_at_most_ten_years_away() -> None:
    now = datetime.now(timezone.utc)
    assert point_ms(now + MAX_DELAY - timedelta(minutes=1)) > 0
    with pytest.raises(InvalidDelayError, match="ten years"):
        point_ms(now + MAX_DELAY + timedelta(minutes=1))


def test_a_zone_without_an_offset_is_naive() -> None:
    class Nowhere(timezone.__base__):  # type: ignore[name-defined,misc]
        def utcoffset(self, _when: datetime | None, /) -> None:
            return None

    with pytest.raises(InvalidDelayError, match="naive"):
        point_ms(datetime(2030, 1, 1, tzinfo=Nowhere()))


@relaxed
@given(milliseconds)
def test_milliseconds_survive_a_round_trip(value: int) -> None:
    moment = from_ms(value)
    assert moment.utcoffset() == timedelta(0)
    assert (moment - EPOCH) / timedelta(milliseconds=1) == value
    entry = Entry("id:with:colons", None, {}, moment, moment)
    assert DelayQueue.cursor(entry) == f"{value}:id:with:colons"


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (0, "0 ms"),
        (0.0123, "12 ms"),
        (1, "1 s"),
        (3.52, "3.5 s"),
        (90, "1 min 30 s"),
        (3600, "1 h"),
        (3605, "1 h"),
        (90061, "1 d 1 h"),
        (119, "1 min 59 s"),
        (0.9996, "1 s"),
        (59.96, "1 min"),
        (-90, "0 ms"),
        (timedelta(days=3652), "3652 d"),
    ],
)
def test_span_text(length: Any, text: str) -> None:
    assert span_text(length) == text


@pytest.mark.parametrize("seconds", [0, 0.999, 0.9999, 59.94, 59.96, 3599.9, 86399, timedelta(days=3652)])
def test_span_text_of_one_unit_fits_into_six_characters(seconds: Any) -> None:
    assert len(span_text(seconds, parts=1)) <= 6
