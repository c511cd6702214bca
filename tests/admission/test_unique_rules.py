"""Unique: what a user may write, and what it means."""

from datetime import timedelta
from typing import Any

import pytest

from redis_queue import InvalidValueError, Unique
from redis_queue.admission.owners import field_of


def test_the_defaults() -> None:
    unique = Unique()
    assert (unique.template, unique.kind, unique.ttl_ms) == (None, "e", 86_400_000)


@pytest.mark.parametrize(
    ("arguments", "kind", "ttl_ms"),
    [
        ({"until": "start"}, "s", 86_400_000),
        ({"until": "end", "ttl": timedelta(hours=1)}, "e", 3_600_000),
        ({"until": timedelta(minutes=5), "ttl": 1}, "t", 300_000),
        ({"ttl": 1.5}, "e", 1500),
    ],
)
def test_how_long_a_key_is_owned(arguments: dict[str, Any], kind: str, ttl_ms: int) -> None:
    unique = Unique(**arguments)
    assert (unique.kind, unique.ttl_ms) == (kind, ttl_ms)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"until": "begin"}, "until='begin'"),
        ({"until": 5}, "until=5"),
        ({"until": timedelta(milliseconds=5)}, "must be 1 second to 366 days"),
        ({"until": timedelta(days=400)}, "must be 1 second to 366 days"),
        ({"on_conflict": "drop"}, "on_conflict='drop': must be one of keep, replace, raise"),
        ({"on_conflict": []}, "on_conflict=[]: must be one of keep, replace, raise"),
        ({"ttl": 0}, "ttl=0"),
        ({"ttl": "day"}, "ttl='day'"),
        ({"ttl": True}, "ttl=True"),
        ({"ttl": float("nan")}, "ttl=nan"),
        ({"ttl": -5}, "ttl=-5"),
        ({"key": 5}, "key=5"),
        ({"key": "{order"}, "key='{order'"),
        ({"key": ""}, "key='': must not be empty"),
        ({"key": "{}"}, "key='{}': unknown argument ''"),
        ({"key": "{order!z}"}, "key='{order!z}': unknown conversion"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError) as raised:
        Unique(**arguments)
    assert message in str(raised.value)


def test_it_is_made_of_a_mapping() -> None:
    unique = Unique("{order}", until="start")
    assert Unique.of({"key": "{order}", "until": "start"}) == unique
    assert Unique.of(unique) is unique


@pytest.mark.parametrize(
    ("value", "message"), [(5, "5: must be a mapping"), ({"keys": "x"}, "unknown option 'keys': did you mean 'key'")]
)
def test_other_values_are_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidValueError) as raised:
        Unique.of(value)
    assert message in str(raised.value)


@pytest.mark.parametrize("task", ["", "a\nb", "x" * 300, 5])
def test_a_task_needs_a_name(task: Any) -> None:
    with pytest.raises(InvalidValueError, match="printable characters"):
        field_of(task, "key")


@pytest.mark.parametrize("key", ["a\0b", "x" * 256, "\ud800"])
def test_a_key_is_short_and_printable(key: str) -> None:
    with pytest.raises(InvalidValueError, match="key="):
        field_of("task", key)
