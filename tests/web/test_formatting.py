"""Formatting of values: secrets are hidden, long text is cut, control characters are escaped."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from markupsafe import Markup

from redis_queue.errors import ConfigurationError
from redis_queue.web import WebSettings, formatting
from redis_queue.web.formatting import HIDDEN

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
            "see https://example.org:8080/a@b",
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
