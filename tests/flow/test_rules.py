"""Flow: what it accepts, and what scripts read of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from redis_queue import Flow
from redis_queue.errors import InvalidValueError


@pytest.mark.parametrize(
    ("flow", "rules"),
    [
        (Flow(limit=10), "10 - - - - - - -"),
        (Flow(limit=0), "0 - - - - - - -"),
        (Flow(rate="100/m"), "- - 600 1 - - - -"),
        (Flow(rate="3/s", burst=5), "- - 333.333333 5 - - - -"),
        (Flow(rate="0.5/h"), "- - 7200000 1 - - - -"),
        (Flow(limit=2, key="{shop_id}", rate="100/m"), "- 2 - - 600 1 - k"),
        (Flow(fair="{tenant}", limit=50, limit_each=5), "50 5 - - - - - f"),
        (Flow(fair="{tenant}", rate="10/s", rate_each="1/s", burst=2), "- - 100 2 1000 2 - f"),
        (Flow(fair="{tenant}", rate_each="1/s", burst=2), "- - - - 1000 2 - f"),
        (Flow(fair="{tenant}", weights={"big": 3}), "- - - - - - 1 f"),
    ],
)
def test_rules(flow: Flow, rules: str) -> None:
    assert flow.rules == rules


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "needs limit=, rate= or fair="),
    ({"limit": -1}, "limit=-1"),
    ({"limit": True}, "limit=True"),
    ({"limit": 2.5}, "limit=2.5"),
    ({"limit": "5"}, "limit='5'"),
    ({"limit": 1_000_001}, "limit=1000001"),
    ({"rate": "0/s"}, "rate='0/s'"),
    ({"rate": "1/fortnight"}, "rate='1/fortnight'"),
    ({"rate": "-1/s"}, "rate='-1/s'"),
    ({"rate": "1e9/s"}, "rate='1e9/s'"),
    ({"rate": "9999999/s"}, "rate='9999999/s'"),
    ({"rate": 5}, "rate=5"),
    ({"rate": "\u0661/s"}, "rate='"),
    ({"rate": "1/s", "burst": 0}, "burst=0"),
    ({"rate": "1/s", "burst": True}, "burst=True"),
    ({"limit": 1, "burst": 5}, "burst=5: needs rate= or rate_each="),
    ({"fair": "{a}", "burst": 3}, "burst=3: needs rate= or rate_each="),
    ({"key": "{a}"}, "needs limit= or rate="),
    ({"key": "", "limit": 1}, "key='': must not be empty"),
    ({"key": "{a!z}", "limit": 1}, "key='{a!z}': unknown conversion"),
    ({"fair": ""}, "fair='': must not be empty"),
    ({"fair": "{0}"}, "fair='{0}': unknown argument '0'"),
    ({"key": "{a", "limit": 1}, "key='{a'"),
    ({"key": 5, "limit": 1}, "key=5"),
    ({"key": "{a}", "fair": "{b}", "limit": 1}, "give only one"),
    ({"limit": 1, "limit_each": 1}, "limit_each=1: needs fair="),
    ({"key": "{a}", "limit": 1, "rate_each": "1/s"}, "rate_each='1/s': needs fair="),
    ({"limit": 1, "weights": {"a": 1}}, "weights: needs fair="),
    ({"fair": "{a}", "weights": {"a": 0}}, "weights: 'a': 0"),
    ({"fair": "{a}", "weights": {5: 1}}, "weights: the key 5"),
    ({"fair": "{a}", "weights": {"a\n": 1}}, "control characters"),
    ({"fair": "{a}", "weights": [1]}, "weights=[1]"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options) for options, _ in BAD])
def test_invalid_values_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(message)):
        Flow(**options)


def test_a_mapping_describes_a_flow() -> None:
    assert Flow.of({"limit": 3}) == Flow(limit=3)
    assert Flow.of(Flow(limit=3)) == Flow(limit=3)
    with pytest.raises(InvalidValueError, match="unknown option 'limits': did you mean 'limit'"):
        Flow.of({"limits": 3})
    with pytest.raises(InvalidValueError, match="10: must be a mapping"):
        Flow.of(10)
