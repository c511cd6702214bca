"""Rates and limits of flows as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redis_queue.admission.rules import FlowLimits, FlowState, interval_ms
from redis_queue.operate.flows import LimitsRow, in_force, rate_text
from tests.support.wait import must

PLAIN = FlowState("queue:mail", FlowLimits(limit=10), FlowLimits(limit=10), "", paused=False, running=0, waiting=0)


def stored(rate: str) -> float:
    """Return the interval of *rate* as Redis holds it."""
    return float(f"{interval_ms('rate', rate):.6f}")


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        ("100/m", "100/m"),
        ("5/s", "5/s"),
        ("7/m", "7/m"),
        ("1/d", "1/d"),
        ("60/m", "1/s"),
        ("24/d", "1/h"),
        ("0.5/s", "30/m"),
        ("2.5/s", "150/m"),
        ("10000/d", "10000/d"),
        ("1000000/s", "1000000/s"),
        ("700000/s", "700000/s"),
        ("0.000001/d", "0.000001/d"),
    ],
)
def test_a_rate_has_the_unit_with_the_shortest_number(rate: str, text: str) -> None:
    assert rate_text(stored(rate)) == text


@pytest.mark.parametrize("unit", "smhd")
@pytest.mark.parametrize("number", ["1", "3", "7", "11.7", "0.123456", "999", "86399", "123456.789012", "999999"])
def test_the_text_of_a_rate_is_the_same_rate(number: str, unit: str) -> None:
    interval = stored(f"{number}/{unit}")
    assert stored(must(rate_text(interval))) == interval


@pytest.mark.parametrize(
    ("interval", "text"), [(None, None), (0.0, None), (-1.0, None), (1e-9, "1e+12/s"), (1e300, "1e-297/s")]
)
def test_an_interval_that_nobody_can_set_has_a_text(interval: float | None, text: str | None) -> None:
    assert rate_text(interval) == text


def test_limits_are_one_line() -> None:
    assert LimitsRow.of(FlowLimits()).text == "no limits"
    assert LimitsRow.of(FlowLimits(1000, 0, 600.0, 1, 200.0, 5)).text == (
        "limit 1,000, rate 100/m, limit of each key 0, rate of each key 5/s, burst of each key 5"
    )


def test_a_burst_without_a_rate_is_left_out() -> None:
    assert LimitsRow.of(FlowLimits(limit=1, burst=5, burst_each=5)) == LimitsRow(limit=1)


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (PLAIN, "queue:mail: limit 10"),
        (replace(PLAIN, paused=True), "queue:mail: paused, limit 10"),
        (replace(PLAIN, limits=FlowLimits()), "queue:mail: no limits; in the code: limit 10"),
        (replace(PLAIN, limits=FlowLimits(), paused=True), "queue:mail: paused; in the code: limit 10"),
    ],
)
def test_what_is_in_force_is_one_line(state: FlowState, line: str) -> None:
    assert in_force(state) == line
