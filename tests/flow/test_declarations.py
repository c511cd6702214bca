"""Declarations: the flows of each app, for a week after a start of its workers, in bounded memory."""

from __future__ import annotations

import pytest
import redis

from redis_queue import Flow
from redis_queue.flow.declarations import KEPT_MS, MOST_APPS, Declaration, Declarations
from redis_queue.flow.flows import Flows
from redis_queue.flow.model import Limits
from redis_queue.store.keys import FlowKeys
from redis_queue.store.scripts import Scripts
from tests.support.clock import Clock

KEY = FlowKeys("redis_queue").declared_by.decode()


@pytest.fixture
def declarations(client: redis.Redis, clock: Clock) -> Declarations:
    return Declarations(Scripts(client), FlowKeys("redis_queue"), clock)


def test_each_app_has_its_own(declarations: Declarations) -> None:
    declarations.write("shop", {"queue:mail": Flow(limit=10), "shop.sync": Flow(limit=2, key="{shop}")})
    declarations.write("mail", {"queue:mail": Flow(limit=5, fair="{tenant}")})
    assert declarations.read() == {
        "queue:mail": [Declaration("mail", Limits(limit=5), "fair"), Declaration("shop", Limits(limit=10), "")],
        "shop.sync": [Declaration("shop", Limits(limit_each=2), "key")],
    }


def test_a_new_start_replaces_those_of_the_app(declarations: Declarations) -> None:
    declarations.write("shop", {"queue:mail": Flow(limit=10), "queue:old": Flow(limit=1)})
    declarations.write("shop", {"queue:mail": Flow(limit=5)})
    assert declarations.read() == {"queue:mail": [Declaration("shop", Limits(limit=5), "")]}


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
    for number in range(MOST_APPS + 5):
        clock.forward(1)
        declarations.write(f"app {number}", {"queue:mail": Flow(limit=10)})
    assert client.hlen(KEY) == MOST_APPS + 1
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
    assert declarations.read() == {"a": [Declaration("rules", Limits(), "")]}
    declarations.write("shop", {"queue:mail": Flow(limit=5)})
    assert not client.hexists(KEY, "odd")
