"""Charts: data, summaries, small curves, and levels of heat maps."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta, timezone

import pytest

from redis_queue.web.charts import LEVELS, chart_data, level, lines, spark_points

AT = datetime(2030, 1, 1, tzinfo=timezone.utc)


class TestLines:
    def test_have_the_colours_of_their_names(self) -> None:
        found = lines([("succeeded", [1]), ("failed", [1]), ("shop.remind", [1]), ("p50", [1])])
        assert [line.tone for line in found] == ["good", "bad", "good", "main"]

    def test_other_names_differ(self) -> None:
        found = lines([(name, [1]) for name in "abcd"])
        assert len({line.tone for line in found}) == 4

    def test_counts_are_added_up(self) -> None:
        (line,) = lines([("sent", [1000, None, 234])])
        assert (line.summary("count"), line.text(0, "count"), line.text(1, "count")) == ("1,234", "1,000", "-")

    def test_of_durations_the_last_known_one_counts(self) -> None:
        (line,) = lines([("p50", [0.5, 2.5, math.nan, None])])
        assert (line.summary("s"), line.text(0, "s"), line.text(2, "s")) == ("2.5 s", "500 ms", "-")

    def test_without_values(self) -> None:
        (line,) = lines([("p50", [])])
        assert (line.summary("s"), line.summary("count")) == ("-", "0")


def test_data_are_short_and_standard_json() -> None:
    text = chart_data(lines([("p50", [1 / 3, math.nan, None])]), "s", [AT + timedelta(minutes=n) for n in range(3)])
    found = json.loads(text, parse_constant=pytest.fail)
    start = round(AT.timestamp())
    assert found == {
        "unit": "s",
        "bars": False,
        "times": [start, start + 60, start + 120],
        "series": [{"name": "p50", "tone": "main", "values": [0.333333, None, None]}],
    }


class TestSpark:
    def test_spans_the_width_and_the_height(self) -> None:
        points = [tuple(map(float, point.split(","))) for point in spark_points([0, 5, 10]).split()]
        assert points == [(0, 23), (50, 12), (100, 1)]

    def test_without_values_or_with_one(self) -> None:
        assert spark_points([]) == ""
        assert spark_points([0, 0]) == "0.0,23.0 100.0,23.0"
        assert spark_points([3]) == "0.0,1.0"


class TestLevel:
    def test_goes_up_with_the_count(self) -> None:
        levels = [level(count, 1000) for count in (0, 1, 2, 10, 100, 999, 1000)]
        assert levels == sorted(levels)
        assert (levels[0], levels[1], levels[-1]) == (0, 1, LEVELS)

    def test_of_a_single_one(self) -> None:
        assert (level(1, 1), level(0, 0)) == (LEVELS, 0)
