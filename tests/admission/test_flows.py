"""Flows: limits, rates and pauses change at run time."""

import re
from typing import Any

import pytest
import redis

from redis_queue import Flow
from redis_queue.admission.declarations import KEPT_MS, MAX_APPS, Declaration, Declarations
from redis_queue.admission.flows import Flows
from redis_queue.admission.rules import FlowLimits, FlowState
from redis_queue.errors import InvalidValueError
from redis_queue.store.keys import FlowKeys
from redis_queue.store.scripts import Scripts
from tests.support.clock import Clock
from tests.support.recording import record_round_trips
from tests.support.wait import must

PREFIX = "redis_queue"


@pytest.fixture
def flows(client: redis.Redis) -> Flows:
    found = Flows(client, PREFIX)
    found.declare(
        {
            "queue:mail": Flow(limit=10, rate="100/m"),
            "shop.sync": Flow(limit=2, key="{shop_id}"),
            "queue:fair": Flow(fair="{tenant}", limit=50, limit_each=5, weights={"big": 3}),
        }
    )
    return found


def test_many_flows_are_declared_in_a_few_round_trips(client: redis.Redis) -> None:
    many = {f"queue:q{number}": Flow(limit=number, fair="{tenant}") for number in range(1, 161)}
    flows = Flows(client, PREFIX)
    flows.declare({"queue:q1": many["queue:q1"]})
    # The first time, the second time, and after a change of all.
    for code, most in ((many, 8), (many, 2), ({name: Flow(limit=500, fair="{tenant}") for name in many}, 8)):
        with record_round_trips() as trips:
            flows.declare(code)
        assert len(trips) <= most
        assert flows.list() == [
            FlowState(name, *[FlowLimits(limit=code[name].limit)] * 2, "fair", False, 0, 0) for name in sorted(many)
        ]


def test_declared_flows_are_listed(flows: Flows) -> None:
    assert flows.list() == [
        FlowState("queue:fair", *[FlowLimits(limit=50, limit_each=5)] * 2, "fair", False, 0, 0),
        FlowState("queue:mail", *[FlowLimits(limit=10, rate_ms=600.0, burst=1)] * 2, "", False, 0, 0),
        FlowState("shop.sync", *[FlowLimits(limit_each=2)] * 2, "key", False, 0, 0),
    ]


def test_what_was_set_stays_until_it_is_reset(flows: Flows) -> None:
    assert flows.set("queue:mail", limit=3).limits == FlowLimits(limit=3, rate_ms=600.0, burst=1)
    assert flows.set("queue:mail", rate="1/s", burst=4).limits == FlowLimits(limit=3, rate_ms=1000.0, burst=4)
    # A worker that starts declares again.
    flows.declare({"queue:mail": Flow(limit=20, rate="100/m")})
    state = must(flows.get("queue:mail"))
    assert state.limits == FlowLimits(limit=3, rate_ms=1000.0, burst=4)
    assert state.declared == FlowLimits(limit=20, rate_ms=600.0, burst=1)
    assert flows.set("queue:mail", limit=None, rate=None).limits == FlowLimits(burst=4)
    assert flows.reset("queue:mail").limits == FlowLimits(limit=20, rate_ms=600.0, burst=1)


def test_limits_of_a_flow_with_keys_are_those_of_a_key(flows: Flows) -> None:
    assert flows.set("shop.sync", limit=5, rate="2/s").limits == FlowLimits(
        limit_each=5, rate_each_ms=500.0, burst_each=1
    )
    assert flows.set("queue:fair", limit_each=7).limits == FlowLimits(limit=50, limit_each=7)


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
    assert [state.limits for state in flows.list() if state.name in "abc"] == [FlowLimits()] * 3


# Flow: what it accepts, and what scripts read of it.


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


# Declarations: the flows of each app, for a week after a start of its workers, in bounded memory.

KEY = FlowKeys("redis_queue").declared_by.decode()


@pytest.fixture
def declarations(client: redis.Redis, clock: Clock) -> Declarations:
    return Declarations(Scripts(client), FlowKeys("redis_queue"), clock)


def test_each_app_has_its_own(declarations: Declarations) -> None:
    declarations.write("shop", {"queue:mail": Flow(limit=10), "shop.sync": Flow(limit=2, key="{shop}")})
    declarations.write("mail", {"queue:mail": Flow(limit=5, fair="{tenant}")})
    assert declarations.read() == {
        "queue:mail": [Declaration("mail", FlowLimits(limit=5), "fair"), Declaration("shop", FlowLimits(limit=10), "")],
        "shop.sync": [Declaration("shop", FlowLimits(limit_each=2), "key")],
    }


def test_a_new_start_replaces_those_of_the_app(declarations: Declarations) -> None:
    declarations.write("shop", {"queue:mail": Flow(limit=10), "queue:old": Flow(limit=1)})
    declarations.write("shop", {"queue:mail": Flow(limit=5)})
    assert declarations.read() == {"queue:mail": [Declaration("shop", FlowLimits(limit=5), "")]}


def test_a_flow_that_left_the_code_is_forgotten_once_it_is_not_in_use(
    declarations: Declarations, client: redis.Redis
) -> None:
    flows, keys = Flows(client, "redis_queue"), FlowKeys("redis_queue")
    every = {name: Flow(limit=1) for name in ("kept", "other", "waits", "runs", "paused", "set", "gone")}
    flows.declare(every)
    declarations.write("shop", every)
    declarations.write("mail", {"other": Flow(limit=1)})
    client.hset(keys.backlog.decode(), "waits", 3)
    client.hset(keys.running.decode(), "runs", 1)
    flows.pause("paused")
    flows.set("set", limit=7)
    declarations.write("shop", {"kept": Flow(limit=1)})
    assert {state.name for state in flows.list()} == every.keys() - {"gone"}
    client.delete(keys.backlog.decode(), keys.running.decode())
    flows.resume("paused")
    flows.reset("set")
    declarations.write("shop", {})
    assert {state.name for state in flows.list()} == {"other"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Flow(limit=1, key="{a}"), Flow(limit=1, key="{b}")),
        (Flow(limit=1), Flow(limit=1, key="{a}")),
        (Flow(limit=1, fair="{a}"), Flow(limit=1, fair=lambda a: a)),
    ],
    ids=["template", "a key is new", "function"],
)
def test_a_changed_key_is_told_while_messages_wait_or_run(
    declarations: Declarations, client: redis.Redis, before: Flow, after: Flow
) -> None:
    keys = FlowKeys("redis_queue")
    declarations.write("shop", {"sync": before})
    assert declarations.write("shop", {"sync": after}) == []
    client.hset(keys.backlog.decode(), "sync", 1)
    assert declarations.write("shop", {"sync": after}) == []
    assert declarations.write("shop", {"sync": before}) == ["sync"]


def test_an_app_without_a_name_has_none(declarations: Declarations, client: redis.Redis) -> None:
    declarations.write(None, {"queue:mail": Flow(limit=10)})
    assert not client.exists(KEY)


def test_old_ones_are_deleted(declarations: Declarations, client: redis.Redis, clock: Clock) -> None:
    declarations.write("gone", {"queue:mail": Flow(limit=10)})
    clock.forward(KEPT_MS / 1000 + 1)
    assert declarations.read() == {}
    declarations.write("shop", {"queue:mail": Flow(limit=5)})
    assert client.hkeys(KEY) == [b"shop"]


def test_their_number_is_limited(declarations: Declarations, client: redis.Redis, clock: Clock) -> None:
    for number in range(MAX_APPS + 5):
        clock.forward(1)
        declarations.write(f"app {number}", {"queue:mail": Flow(limit=10)})
    assert client.hlen(KEY) == MAX_APPS + 1
    assert not client.hexists(KEY, "app 0")


@pytest.mark.parametrize(
    "value", [b"", b"\xff", b"7", b"[]", b'{"at": "x"}', b'{"at": 9e99, "flows": {}}', b"[" * 5000, b'{"flows": {}}']
)
def test_entries_of_other_programs_are_ignored(
    declarations: Declarations, client: redis.Redis, clock: Clock, value: bytes
) -> None:
    client.hset(KEY, "odd", value)
    client.hset(KEY, "flows", f'{{"at": {clock.now}, "flows": 7}}')
    client.hset(KEY, "rules", f'{{"at": {clock.now}, "flows": {{"queue:mail": 7, "a": "x"}}}}')
    assert declarations.read() == {"a": [Declaration("rules", FlowLimits(), "")]}
    declarations.write("shop", {"queue:mail": Flow(limit=5)})
    assert not client.hexists(KEY, "odd")
