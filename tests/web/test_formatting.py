"""Formatting of values: secrets are hidden, long text is cut, control characters are escaped."""

from __future__ import annotations

import json
import math
import re
import time
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from markupsafe import Markup

from redis_queue.basics.logs import HIDDEN
from redis_queue.errors import ConfigurationError
from redis_queue.operate.history import Quantiles
from redis_queue.web import WebSettings, formatting
from redis_queue.web.charts import LEVELS, chart_data, level, lines, spark_points
from tests.support.web.browser import Browser
from tests.support.web.contents import Open

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)


class TestRedacted:
    @pytest.mark.parametrize(
        "text",
        [
            "{'password': 'hunter2'}",
            '{"password": "hunter2 hunter2"}',
            '{"password":"hunter2',
            r'{"body": "{\"password\": \"hunter2\"}"}',
            "{'PASSWD': b'hunter2 hunter2'}",
            "{'db_password_old': 'it\\'s hunter2'}",
            "{'tokens': ['hunter2', 'hunter2']}",
            "{'api_key': 'hunter2', 'x-api-key': 'hunter2', 'apikey': 'hunter2'}",
            "client_secret=hunter2&next=/",
            "login failed: password: hunter2",
            "Authorization: Bearer hunter2hunter2",
            "authorization: Basic hunter2hunter2==",
            "sent with bearer hunter2.hunter2-hunter2",
            "Set-Cookie: hunter2",
            "redis://user:hunter2@host/0",
            "cannot reach amqp://:hunter2@host//",
            "'private_key': '-----BEGIN\nhunter2\nhunter2-----'",
            'credentials="hunter2"',
        ],
    )
    def test_hides_secrets(self, text: str) -> None:
        found = formatting.redacted(text)
        assert "hunter2" not in found
        assert HIDDEN in found

    @pytest.mark.parametrize(
        "text",
        [
            "Timeout: no answer",
            "{'order': 42, 'name': 'ann'}",
            "see https://example.org/@ann/post",
            "the secretary of the token ring",
            "basic needs",
        ],
    )
    def test_leaves_other_text_alone(self, text: str) -> None:
        assert formatting.redacted(text) == text

    def test_keeps_the_text_around_a_secret(self) -> None:
        assert formatting.redacted("{'a': 1, 'token': 'x', 'b': 2}") == f"{{'a': 1, 'token': {HIDDEN}, 'b': 2}}"

    @pytest.mark.parametrize(
        "part", ["a.", "token", "token=", "token='", 'token="\\', "'token'", "://", "://a:", "Bearer ", "\\", "[", "  "]
    )
    def test_no_text_makes_it_slow(self, part: str) -> None:
        text = part * (formatting.MAX_BODY // len(part))
        start = time.process_time()
        formatting.redacted(text)
        assert time.process_time() - start < 0.5


class TestBody:
    def test_is_json_or_text(self) -> None:
        assert json.loads(formatting.body({"a": [1, None]})) == {"a": [1, None]}
        assert formatting.body(b"plain \xff") == "plain \\xff"

    @pytest.mark.parametrize("value", ["x" * 200_000, b"x" * 200_000, ["x" * 200_000]])
    def test_is_cut(self, value: Any) -> None:
        assert len(formatting.body(value)) < formatting.MAX_BODY + 100
        assert "characters)" in formatting.body(value)

    def test_is_not_written_beyond_what_is_shown(self) -> None:
        written: list[int] = []

        class Item:
            def __repr__(self) -> str:
                written.append(1)
                return "item"

        value: Any = [Item() for _ in range(100_000)]
        for _ in range(150):
            value = [value]
        assert len(formatting.body(value)) < formatting.MAX_BODY + 100
        assert len(written) < formatting.MAX_BODY

    def test_may_be_nested_deeply(self) -> None:
        value: list[Any] = []
        for _ in range(50_000):
            value = [value]
        assert len(formatting.body(value)) < formatting.MAX_BODY + 100


class TestTimes:
    def test_until(self) -> None:
        assert formatting.until(NOW + timedelta(minutes=5), NOW) == "in 5 min"
        assert formatting.until(NOW - timedelta(seconds=3), NOW) == "3 s ago"
        assert formatting.until(None, NOW) == "-"

    def test_moments_are_in_utc(self) -> None:
        at = datetime(2030, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
        assert formatting.moment(at) == "2030-01-01 00:00:00"
        assert formatting.machine(at) == "2030-01-01T00:00:00+00:00"
        assert formatting.moment(None) == "-"

    def test_moments_are_in_the_zone_of_the_dashboard(self) -> None:
        at = datetime(2030, 7, 1, tzinfo=timezone.utc)
        zone = WebSettings(timezone="Europe/Berlin").zone
        assert formatting.moment(at, zone=zone) == "2030-07-01 02:00:00"
        assert formatting.moment(at, "day", zone=zone) == "Mon 01 Jul 02:00"
        assert formatting.moment(datetime.max.replace(tzinfo=timezone.utc), zone=zone) == "9999-12-31 23:59:59"

    @pytest.mark.parametrize("name", ["Europe/Nowhere", "", "../etc/passwd", "Europe", "\0", 5])
    def test_an_unknown_zone_is_refused(self, name: Any) -> None:
        with pytest.raises(ConfigurationError, match="expected the name of a time zone, such as Europe/Berlin"):
            WebSettings(timezone=name)


class TestHarmless:
    def test_escapes_control_characters(self) -> None:
        assert formatting.harmless("a\u202eb\x1b[2J\u200b\ud800\x00") == r"a\u202eb\x1b[2J\u200b\ud800\x00"

    def test_keeps_other_text(self) -> None:
        kept = Markup("<b>\u202e</b>")
        for value in ("plain ä 中\n\tx", 3, None, kept):
            assert formatting.harmless(value) is value or formatting.harmless(value) == value


# Charts: data, summaries, small curves, and levels of heat maps.

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

    def test_a_duration_is_that_of_the_whole_span_or_the_longest(self) -> None:
        whole, worst = lines([Quantiles("p50", [0.5, 2.5, math.nan, None, 0.1], 0.7), ("worst", [0.5, 2.5, None, 0.1])])
        assert (whole.summary("s"), whole.text(0, "s"), whole.text(2, "s")) == ("700 ms", "500 ms", "-")
        assert worst.summary("s") == "2.5 s"

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
        "marks": [],
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


# Times on pages are in the configured zone, with UTC in their titles.

KOLKATA = "Asia/Kolkata"
PATHS = ("/scheduled", "/dead", "/audit", "/forecast", "/unique", "/entry?queue=scheduled&id=task-1")


def times(browser: Browser, path: str) -> list[tuple[datetime, str, str]]:
    """Return the machine-readable time, the title and the text of each time on a page."""
    found = re.findall(r'<time datetime="([^"]+)" title="([^"]+)"[^>]*>([^<]+)</time>', browser.get(path).source)
    assert found, path
    return [(datetime.fromisoformat(machine), title, shown) for machine, title, shown in found]


@pytest.mark.parametrize("path", PATHS)
def test_the_zone_of_the_dashboard(path: str, open_dashboard: Open) -> None:
    browser = open_dashboard(timezone=KOLKATA)
    for at, title, shown in times(browser, path):
        assert title == at.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        assert at.astimezone(ZoneInfo(KOLKATA)).strftime("%H:%M") in shown
    source = browser.get(path).source
    assert f'data-timezone="{KOLKATA}"' in source
    assert ">UTC<" not in source


@pytest.mark.parametrize("path", PATHS)
def test_without_a_zone_the_page_has_utc_for_the_browser_to_convert(path: str, reader: Browser) -> None:
    for at, _, shown in times(reader, path):
        assert at.astimezone(timezone.utc).strftime("%H:%M") in shown
    assert "data-timezone" not in reader.get(path).source
