"""Metrics of workers, tasks and Celery's queues."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from redis_queue import Flow, RedisQueue
from redis_queue.admission.flows import Flows
from redis_queue.admission.owners import Owners, field_of, new_token
from redis_queue.basics.histogram import Histogram
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure, Series, Tally, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.metrics import MOST_FLOWS, Collector, read_flows
from redis_queue.operate.queue_row import CeleryQueueRow
from redis_queue.store.keys import FlowKeys
from redis_queue.store.scripts import NumberedCalls, Scripts


def text_of(collector: Collector) -> str:
    """Return a scrape."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


def test_workers_and_tasks_are_counted(client: redis.Redis) -> None:
    now = datetime.now(timezone.utc)
    tally = Tally(10, 2, 1, 3, Histogram.of([30] * 10))
    row = WorkerRow("one@host", now, now, busy=2, prefetched=3, keeper=False)
    Reports(client, "p").write(row, tallies={Series("shop.mail", "mail"): tally})
    Reports(client, "p").write(WorkerRow("two@host", now, now, loop_age=61.0))
    Reports(client, "p").write(WorkerRow("three@host", now, now, loop_age=59.0, keeper=True))
    Failures(client, "p").keep([Failure("id", "shop.mail", "mail", "one@host", now)], 10, 7)
    text = text_of(Collector(Inspector(client, prefix="p")))
    for line in (
        "redis_queue_workers 3.0",
        "redis_queue_workers_stuck 2.0",
        "redis_queue_failures_kept 1.0",
        "redis_queue_running_tasks 2.0",
        "redis_queue_prefetched_tasks 3.0",
        "redis_queue_keepers_dead 1.0",
        'redis_queue_task_executed_total{queue="mail",task="shop.mail"} 10.0',
        'redis_queue_task_failed_total{queue="mail",task="shop.mail"} 2.0',
        'redis_queue_task_revoked_total{queue="mail",task="shop.mail"} 3.0',
        'redis_queue_task_duration_seconds_bucket{le="0.05",queue="mail",task="shop.mail"} 10.0',
        'redis_queue_task_duration_seconds_sum{queue="mail",task="shop.mail"} 0.3',
    ):
        assert f"{line}\n" in text, text


def test_queues_are_counted(client: redis.Redis) -> None:
    rows = [
        CeleryQueueRow("mail", ready=5, in_flight=2, consumers=0, oldest_age=12.5),
        CeleryQueueRow("far", ready=None, consumers=3),
        CeleryQueueRow("broken", ready=1, error="not a list"),
    ]
    text = text_of(Collector(Inspector(client, prefix="p"), celery_queues=lambda: rows, due=lambda: {"mail": 7}))
    for line in (
        'redis_queue_celery_ready{queue="mail"} 5.0',
        'redis_queue_celery_in_flight{queue="mail"} 2.0',
        'redis_queue_celery_consumers{queue="far"} 3.0',
        'redis_queue_celery_oldest_age_seconds{queue="mail"} 12.5',
        'redis_queue_celery_due_within_300s{queue="mail"} 7.0',
    ):
        assert f"{line}\n" in text, text
    assert 'queue="broken"' not in text
    assert 'redis_queue_celery_ready{queue="far"}' not in text


def _raise() -> Any:
    raise OSError("away")


@pytest.mark.parametrize("queues", [tuple, _raise])
def test_what_cannot_be_read_is_left_out(queues: Any) -> None:
    with redis.Redis(port=1, socket_timeout=0.1) as away:
        assert "redis_queue_workers" not in text_of(Collector(Inspector(away, prefix="p"), celery_queues=queues))


def test_queues_are_counted_even_if_delayed_tasks_cannot_be_read(client: redis.Redis) -> None:
    rows = [CeleryQueueRow("mail", ready=5, consumers=0)]
    text = text_of(Collector(Inspector(client, prefix="p"), celery_queues=lambda: rows, due=_raise))
    assert 'redis_queue_celery_ready{queue="mail"} 5.0\n' in text
    assert "redis_queue_celery_due_within_300s{" not in text


# The metric of unique tasks: owned keys, and never a failure of the scrape.

KEYS = FlowKeys("redis_queue")


def value(client: redis.Redis, name: str = "redis_queue_unique_keys") -> float | None:
    """Return the value of a metric without labels; None if it is missing."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(Collector(Inspector(client)))
    return registry.get_sample_value(name)


def test_owned_keys_are_counted(client: redis.Redis) -> None:
    assert value(client) == 0
    owners = Owners(client, "redis_queue")
    for number in range(3):
        assert owners.acquire(field_of("sync", str(number)), new_token(), task_id="id", ttl_ms=60_000).owns
    assert value(client) == 3
    owners.release("sync", "1")
    assert value(client) == 2
    client.zadd(KEYS.owner_ends, {field_of("sync", "2"): 1})
    assert value(client) == 1


def test_keys_that_cannot_be_counted_leave_out_this_metric_only(
    client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.set(KEYS.owner_ends, "x")
    assert value(client) is None
    assert value(client, "redis_queue_up") == 1
    assert "cannot read metrics of unique tasks" in caplog.text


# Metrics of flows: bounded, without keys, and never a failure of the scrape.


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
        "admission/send",
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
