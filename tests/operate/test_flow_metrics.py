"""Metrics of flows: bounded, without keys, and never a failure of the scrape."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from redis_queue import Flow, RedisQueue
from redis_queue.flow.flows import Flows
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.metrics import MOST_FLOWS, Collector, read_flows
from redis_queue.store.keys import FlowKeys
from redis_queue.store.scripts import NumberedCalls, Scripts

KEYS = FlowKeys("redis_queue")


@pytest.fixture
def flows(client: redis.Redis) -> Flows:
    """Two flows."""
    found = Flows(client, "redis_queue")
    found.declare({"queue:mail": Flow(limit=10, fair="{tenant}"), "shop.sync": Flow(limit=2, key="{shop}")})
    return found


def send(client: redis.Redis, key: str, age: float = 0.0, *, task: str = "", queue: str = "mail") -> None:
    """Send a message that is *age* seconds old."""
    headers = {"redis_queue_sent": int((time.time() - age) * 1000)}
    NumberedCalls(Scripts(client), KEYS).prepare(
        "flow/send",
        now=0,
        step=0,
        queue=queue,
        task=task,
        of_task=key if task else "",
        of_queue="" if task else key,
        is_new=1,
        message=json.dumps({"body": "", "headers": headers}),
        more=[],
    )()


def scrape(client: redis.Redis) -> dict[tuple[str, str], float]:
    """Return the metrics of flows by name and flow."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(Collector(Inspector(client)))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name.removeprefix("redis_queue_flow_"), sample.labels["flow"]): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("redis_queue_flow_")
    }


def names(rows: Iterable[tuple[str, str]]) -> set[str]:
    return {flow for _, flow in rows}


def test_without_flows_there_are_no_metrics_of_flows(client: redis.Redis) -> None:
    assert scrape(client) == {}


def test_each_flow_has_its_counts(client: redis.Redis, flows: Flows) -> None:
    for age in (30, 90, 10):
        send(client, f"tenant {age}", age)
    send(client, "a", 200, task="shop.sync", queue="other")
    client.hset(KEYS.running.decode(), "queue:mail", 4)
    flows.pause("shop.sync")
    flows.count_passing({"queue:mail": 2})
    flows.count_passing({"queue:mail": 5})
    found = scrape(client)
    ages = {flow: found.pop(("oldest_age_seconds", flow)) for flow in ("queue:mail", "shop.sync")}
    assert found == {
        ("running", "queue:mail"): 4,
        ("running", "shop.sync"): 0,
        ("waiting", "queue:mail"): 3,
        ("waiting", "shop.sync"): 1,
        ("limit", "queue:mail"): 10,
        ("paused", "queue:mail"): 0,
        ("uncounted_total", "queue:mail"): 7,
        ("uncounted_total", "shop.sync"): 0,
        ("paused", "shop.sync"): 1,
    }
    assert ages == {"queue:mail": pytest.approx(90, abs=10), "shop.sync": pytest.approx(200, abs=10)}


def test_a_limit_that_was_set_is_exported(client: redis.Redis, flows: Flows) -> None:
    flows.set("queue:mail", limit=0)
    assert scrape(client)["limit", "queue:mail"] == 0
    flows.set("queue:mail", limit=None)
    assert ("limit", "queue:mail") not in scrape(client)


def test_the_age_is_that_of_messages_that_still_wait(client: redis.Redis, flows: Flows) -> None:
    assert scrape(client)["oldest_age_seconds", "queue:mail"] == 0
    for age in (500, 100):
        send(client, "tenant", age)
    [key] = client.keys(f"{KEYS.messages('').decode()}*")
    client.rpop(key)
    assert scrape(client)["oldest_age_seconds", "queue:mail"] == pytest.approx(100, abs=10)


def test_only_flows_with_most_messages_are_exported(client: redis.Redis, flows: Flows) -> None:
    for number in range(MOST_FLOWS):
        flows.pause(f"queue:quiet {number}")
    client.hset(KEYS.config.decode(), mapping={f"task {number}": "1 - - - - - - -" for number in range(300)})
    client.hset(KEYS.running.decode(), "task 299", 5)
    client.hset(KEYS.backlog.decode(), "task 17", 1)
    found = names(scrape(client))
    assert len(found) == MOST_FLOWS
    assert {"task 299", "task 17"} < found
    assert sum(name.startswith("queue:quiet") for name in found) == MOST_FLOWS - 2


def test_many_keys_take_no_more_commands(client: redis.Redis, flows: Flows) -> None:
    inspector = Inspector(client)
    send(client, "first", 50)

    def cost() -> int:
        before = int(client.info("stats")["total_commands_processed"])
        assert any(age for _, (_, age) in read_flows(inspector, inspector.now()))
        return int(client.info("stats")["total_commands_processed"]) - before

    cost()
    few = cost()
    for number in range(20):
        send(client, f"tenant {number}")
    # One LLEN and one LINDEX for each key, in one script.
    assert cost() == few + 40
    assert few < 20


@pytest.mark.parametrize("part", ["config", "flags", "running", "oldest"])
def test_keys_of_another_program_hide_no_queue(client: redis.Redis, flows: Flows, part: str) -> None:
    RedisQueue("orders", client).put("x")
    send(client, "tenant")
    key = getattr(KEYS, part).decode()
    client.delete(key)
    client.set(key, "text")
    assert scrape(client) == {}
    registry = CollectorRegistry()
    registry.register(Collector(Inspector(client)))
    assert 'redis_queue_ready{kind="queue",queue="orders"} 1.0' in generate_latest(registry).decode()
