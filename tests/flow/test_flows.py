"""Flows: limits, rates and pauses change at run time."""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis

from redis_queue import Flow
from redis_queue.errors import InvalidValueError
from redis_queue.flow.flows import Flows
from redis_queue.flow.model import FlowState, Limits
from redis_queue.store.keys import FlowKeys

PREFIX = "redis_queue"


@pytest.fixture
def flows(client: redis.Redis) -> Flows:
    """Three flows."""
    found = Flows(client, PREFIX)
    found.declare(
        {
            "queue:mail": Flow(limit=10, rate="100/m"),
            "shop.sync": Flow(limit=2, key="{shop_id}"),
            "queue:fair": Flow(fair="{tenant}", limit=50, limit_each=5, weights={"big": 3}),
        }
    )
    return found


def test_declared_flows_are_listed(flows: Flows) -> None:
    assert flows.list() == [
        FlowState("queue:fair", *[Limits(limit=50, limit_each=5)] * 2, "fair", False, 0, 0),
        FlowState("queue:mail", *[Limits(limit=10, rate_ms=600.0, burst=1)] * 2, "", False, 0, 0),
        FlowState("shop.sync", *[Limits(limit_each=2)] * 2, "key", False, 0, 0),
    ]


def test_what_was_set_stays_until_it_is_reset(flows: Flows) -> None:
    assert flows.set("queue:mail", limit=3).limits == Limits(limit=3, rate_ms=600.0, burst=1)
    assert flows.set("queue:mail", rate="1/s", burst=4).limits == Limits(limit=3, rate_ms=1000.0, burst=4)
    # A worker that starts declares again.
    flows.declare({"queue:mail": Flow(limit=20, rate="100/m")})
    state = flows.get("queue:mail")
    assert state is not None
    assert state.limits == Limits(limit=3, rate_ms=1000.0, burst=4)
    assert state.declared == Limits(limit=20, rate_ms=600.0, burst=1)
    assert flows.set("queue:mail", limit=None, rate=None).limits == Limits(burst=4)
    assert flows.reset("queue:mail").limits == Limits(limit=20, rate_ms=600.0, burst=1)


def test_limits_of_a_flow_with_keys_are_those_of_a_key(flows: Flows) -> None:
    assert flows.set("shop.sync", limit=5, rate="2/s").limits == Limits(limit_each=5, rate_each_ms=500.0, burst_each=1)
    assert flows.set("queue:fair", limit_each=7).limits == Limits(limit=50, limit_each=7)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("queue:mail", {}, "expected limit="),
        ("queue:mail", {"limit": -1}, "limit=-1"),
        ("queue:mail", {"limit": True}, "limit=True"),
        ("queue:mail", {"rate": "0/s"}, "rate='0/s'"),
        ("queue:mail", {"burst": 0}, "burst=0"),
        ("queue:mail", {"limit_each": 1}, "need a flow with fair="),
        ("queue:maul", {"limit": 1}, "unknown flow 'queue:maul': did you mean 'queue:mail'?"),
        ("", {"limit": 1}, "must be 1 to 200 printable characters"),
        ("a\0b", {"limit": 1}, "must be 1 to 200 printable characters"),
    ],
)
def test_bad_values_change_nothing(flows: Flows, name: str, options: dict[str, Any], message: str) -> None:
    before = flows.list()
    with pytest.raises(InvalidValueError, match=re.escape(message)):
        flows.set(name, **options)
    assert flows.list() == before


def test_pause_and_resume(flows: Flows) -> None:
    for name in ("queue:mail", "queue:other", "shop.sync"):
        flows.pause(name)
        assert [state.name for state in flows.list() if state.paused] == [name]
        flows.resume(name)
        flows.resume(name)
    assert not any(state.paused for state in flows.list())
    with pytest.raises(InvalidValueError, match="unknown flow 'other'"):
        flows.pause("other")


def test_hostile_values_are_no_limits(client: redis.Redis, flows: Flows) -> None:
    keys = FlowKeys(PREFIX)
    client.hset(keys.config.decode(), mapping={"a": "x", "b": "nan inf 1e999 - - - - k", "c": b"\xff" * 9})
    client.hset(keys.running.decode(), mapping={"a": "9" * 400, "b": "-1"})
    assert [state.limits for state in flows.list() if state.name in "abc"] == [Limits()] * 3
