"""Settings have one documented default each and are validated when they are created."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_queue import ConfigurationError, Settings

EDGES: dict[str, tuple[Any, Any, Any, Any]] = {
    "lease": (0.0009, 0.001, 7 * 86400, 7 * 86400 + 1),
    "poll_interval": (0.009, 0.01, 60, 60.1),
    "max_deliveries": (-1, 0, 1_000_000, 1_000_001),
    "max_length": (-1, 0, 2**53, 2**53 + 1),
    "max_body": (0, 1, 2**29, 2**29 + 1),
    "put_back_on_get": (-1, 0, 500, 501),
    "shards": (0, 1, 1024, 1025),
    "prefix": ("", "x", "x" * 100, "x" * 101),
}


def test_the_defaults() -> None:
    settings = Settings()
    assert (settings.prefix, settings.max_deliveries, settings.max_length) == ("redis_queue", 20, 0)
    assert (settings.max_body, settings.put_back_on_get, settings.shards) == (262144, 10, 1)
    assert (settings.lease_ms, settings.poll_seconds) == (60_000, 1.0)


@pytest.mark.parametrize("name", EDGES)
def test_each_range_includes_its_ends(name: str) -> None:
    below, low, high, above = EDGES[name]
    assert getattr(Settings(**{name: low}), name) == low
    assert getattr(Settings(**{name: high}), name) == high
    for value in (below, above):
        if (name, value) != ("lease", 0.0009):
            with pytest.raises(ConfigurationError, match=re.escape(f"{name}={value!r}")):
                Settings(**{name: value})


def test_every_setting_but_the_serializer_has_a_range() -> None:
    assert {field.name for field in fields(Settings)} == {*EDGES, "serializer"}


@pytest.mark.parametrize("name", [name for name in EDGES if name != "prefix"])
@pytest.mark.parametrize("value", [None, True, "5", b"5", [], float("nan"), float("inf"), 1j], ids=repr)
def test_a_number_refuses_other_types(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"{name}={value!r}")):
        Settings(**{name: value})


def test_durations_are_seconds_or_timedelta() -> None:
    settings = Settings(lease=timedelta(minutes=2), poll_interval=timedelta(milliseconds=250))
    assert (settings.lease_ms, settings.poll_seconds) == (120_000, 0.25)


def test_settings_are_immutable_and_can_be_copied() -> None:
    settings = Settings(max_length=5)
    with pytest.raises(FrozenInstanceError):
        settings.max_length = 6  # type: ignore[misc]
    assert replace(settings, shards=3) == Settings(max_length=5, shards=3)
    with pytest.raises(ConfigurationError, match="shards=0"):
        replace(settings, shards=0)


def test_a_mapping_gives_the_same_settings() -> None:
    values = {"prefix": "shop", "max_deliveries": 3, "poll_interval": 0.5}
    assert Settings.from_mapping(values) == Settings(prefix="shop", max_deliveries=3, poll_interval=0.5)
    assert Settings.from_mapping({}) == Settings()


@given(st.text())
def test_any_unknown_name_is_refused_with_its_name(name: str) -> None:
    if name not in {field.name for field in fields(Settings)}:
        with pytest.raises(ConfigurationError) as caught:
            Settings.from_mapping({name: 1})
        assert str(caught.value).startswith(f"unknown setting {name!r}: ")


@pytest.mark.parametrize("name", [*EDGES, "serializer"])
def test_each_name_with_a_letter_missing_is_recognised(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"did you mean '{name}'"):
        Settings.from_mapping({name[:-2] + name[-1]: 1})
