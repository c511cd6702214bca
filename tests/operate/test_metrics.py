"""The Prometheus collector has the numbers of the queues, and every scrape succeeds."""

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

from redis_queue import DelayQueue, Flow, RedisQueue
from redis_queue.admission.flows import Flows
from redis_queue.admission.owners import Owners, field_of, new_token
from redis_queue.basics.histogram import LIMITS, Histogram
from redis_queue.celery.leases.leases import LeaseCounters
from redis_queue.delay.model import Dispatched
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure, Series, Tally, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.metric_table import BOUNDS
from redis_queue.operate.metrics import MAX_FLOWS, OTHERS, Collector, flow_samples
from redis_queue.operate.queue_row import CeleryQueueRow
from redis_queue.store.keys import FlowKeys, Keys, PrefixKeys
from redis_queue.store.scripts import NumberedCalls, Scripts
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.store.stage import LATER, SOMEBODY, Stage

Samples = dict[tuple[str, ...], float]


def scrape(collector: Collector) -> Samples:
    """Return the samples of a scrape: name and label values -> value; each is exported once."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(collector)
    text = generate_latest(registry).decode()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    samples = {(sample.name, *map(sample.labels.get, sorted(sample.labels))): sample.value for sample in found}
    assert len(samples) == len(found)
    return samples


@pytest.fixture
def inspector(client: redis.Redis) -> Inspector:
    """An inspector on the server's clock."""
    return Inspector(client)


def test_every_count_equals_that_of_the_inspector(client: redis.Redis) -> None:
    stage = Stage(client)
    stage.clock.now += LATER
    stage.queue.put_back()
    stage.queue.pause()
    inspector = Inspector(client, clock=stage.clock)
    samples = scrape(Collector(inspector))
    rows = inspector.queues()
    assert len(rows) == 2
    for row in rows:
        for name in ("ready", "delayed", "in_flight", "dead", "quarantined"):
            assert samples[f"redis_queue_{name}", row.kind, row.name] == getattr(row, name), name
        for name in ("put", "acked", "redelivered", "put_back"):
            assert samples[f"redis_queue_{name}_total", row.kind, row.name] == getattr(row, name), name
        assert samples["redis_queue_paused", row.kind, row.name] == row.paused
        assert row.oldest_at is not None
        assert samples["redis_queue_oldest_due_age_seconds", row.kind, row.name] == LATER / 1000
    assert samples["redis_queue_put_back_total", "queue", "orders"] == 1
    assert samples["redis_queue_paused", "queue", "orders"] == 1
    assert samples[("redis_queue_up",)] == 1
    assert samples[("redis_queue_unreadable_queues",)] == 0


def test_a_last_expired_lease_counts_as_put_back(client: redis.Redis, inspector: Inspector) -> None:
    messages, entries = RedisQueue("last", client, max_deliveries=1), DelayQueue("last", client, max_deliveries=1)
    messages.put("x")
    entries.push("x")
    assert messages.get(block=False)
    assert entries.claim()
    later = Inspector(client, clock=lambda: int(inspector.now().timestamp() * 1000) + LATER)
    assert [queue.put_back().dead for queue in later.catalog.queues("last")] == [1, 1]
    samples = scrape(Collector(inspector))
    assert [samples["redis_queue_put_back_total", kind, "last"] for kind in ("queue", "delay")] == [1, 1]
    assert [samples["redis_queue_redelivered_total", kind, "last"] for kind in ("queue", "delay")] == [0, 0]


def test_nothing_due_has_no_age(client: redis.Redis, inspector: Inspector) -> None:
    RedisQueue("later", client).put("x", delay=60)
    DelayQueue("later", client).push("x", delay=60)
    samples = scrape(Collector(inspector))
    for kind in ("queue", "delay"):
        assert samples["redis_queue_oldest_due_age_seconds", kind, "later"] == 0


def test_dispatches_are_a_histogram_of_cumulative_buckets(client: redis.Redis, inspector: Inspector) -> None:
    timed = DelayQueue("timed", client)
    timed.push("x", delay=60)
    timed.dispatch_log.note(Dispatched(3, 2, Histogram.of([3, 400, 9e9])), dispatcher=SOMEBODY)
    samples = scrape(Collector(inspector))
    assert samples["redis_queue_dispatched_total", "timed"] == 3
    assert samples["redis_queue_dispatch_failed_total", "timed"] == 2
    assert samples["redis_queue_dispatchers", "timed"] == 1
    name = "redis_queue_dispatch_lateness_seconds"
    assert samples[f"{name}_count", "timed"] == 3
    assert samples[f"{name}_sum", "timed"] == pytest.approx(9e6 + 0.403)
    buckets = [samples[f"{name}_bucket", le, "timed"] for le in (*map(str, BOUNDS), "+Inf")]
    assert buckets == [1] * 6 + [2] * 8 + [3]
    assert set(BOUNDS) <= set(LIMITS), "expected exact counts"


def test_lease_counters_are_exported_if_they_are_known(inspector: Inspector) -> None:
    names = {
        "redis_queue_leases_lost_total": 1,
        "redis_queue_leases_restored_total": 2,
        "redis_queue_tasks_dead_total": 3,
        "redis_queue_starts_dropped_total": 4,
    }
    samples = scrape(Collector(inspector, leases=lambda: LeaseCounters(1, 2, 3, 4)))
    assert {name: samples[name,] for name in names} == names
    assert not names.keys() & {name for name, *_ in scrape(Collector(inspector))}


def test_a_failing_broker_removes_only_its_own_metrics(client: redis.Redis, inspector: Inspector) -> None:
    def fail() -> None:
        raise OSError("away")

    RedisQueue("orders", client).put("x")
    samples = scrape(Collector(inspector, leases=fail))
    assert samples[("redis_queue_up",)] == 1
    assert samples["redis_queue_ready", "queue", "orders"] == 1


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a{b}=1,c", "é✓ #", "{{x}}", "a\\nb", "x" * 200])
def test_hostile_names_are_escaped_in_labels(client: redis.Redis, inspector: Inspector, name: str) -> None:
    RedisQueue(name, client).put("x")
    assert scrape(Collector(inspector))["redis_queue_ready", "queue", name] == 1


class TestManyQueues:
    @pytest.fixture(autouse=True)
    def queues(self, client: redis.Redis) -> None:
        """Ten queues of each kind, of different sizes."""
        for number in range(10):
            RedisQueue(f"q{number}", client).put_many([0] * (number + 1))
            timed = DelayQueue(f"d{number}", client)
            timed.push_many(["x"] * (number + 1))
            timed.dispatch_log.note(Dispatched(number, 0, Histogram.of([7] * number)), dispatcher=SOMEBODY)

    def test_the_smallest_are_added_up(self, inspector: Inspector) -> None:
        samples = scrape(Collector(inspector, most_queues=6))
        ready = {key[1:]: value for key, value in samples.items() if key[0] == "redis_queue_ready"}
        assert ready == {
            **{(kind, f"{kind[0]}{number}"): number + 1 for kind in ("queue", "delay") for number in (7, 8, 9)},
            ("queue", OTHERS): sum(range(1, 8)),
            ("delay", OTHERS): sum(range(1, 8)),
        }
        assert samples["redis_queue_dispatchers", OTHERS] == 7

    def test_the_sum_of_the_others_has_no_counters(self, inspector: Inspector) -> None:
        samples = scrape(Collector(inspector, most_queues=6))
        counted = {name for name, *labels in samples if OTHERS in labels}
        assert counted == {
            *(f"redis_queue_{name}" for name in ("ready", "delayed", "in_flight", "dead", "quarantined", "paused")),
            "redis_queue_oldest_due_age_seconds",
            "redis_queue_dispatchers",
        }

    def test_queues_keep_their_label_when_others_grow(self, client: redis.Redis, inspector: Inspector) -> None:
        collector = Collector(inspector, most_queues=6)
        before = {key[1:] for key in scrape(collector) if key[0] == "redis_queue_put_total"}
        RedisQueue("q0", client).put_many([0] * 100)
        RedisQueue("new", client).put_many([0] * 100)
        assert {key[1:] for key in scrape(collector) if key[0] == "redis_queue_put_total"} == before
        RedisQueue("q9", client).destroy()
        after = {key[1:] for key in scrape(collector) if key[0] == "redis_queue_put_total"}
        assert (len(after), ("queue", "q9") in after, len(after & before)) == (6, False, 5)

    def test_the_totals_stay_the_same(self, inspector: Inspector) -> None:
        def total(most: int, metric: str) -> float:
            samples = scrape(Collector(inspector, most_queues=most))
            return sum(value for (name, *_), value in samples.items() if name == metric)

        for metric in ("redis_queue_ready", "redis_queue_dispatchers"):
            assert total(0, metric) == total(3, metric) == total(200, metric) > 0

    def test_a_queue_with_the_name_of_the_others_is_one_of_them(
        self, client: redis.Redis, inspector: Inspector
    ) -> None:
        RedisQueue(OTHERS, client).put_many([0] * 100)
        samples = scrape(Collector(inspector))
        assert samples["redis_queue_ready", "queue", OTHERS] == 100


def test_an_unreadable_queue_does_not_hide_others(client: redis.Redis, inspector: Inspector) -> None:
    for name in ("good", "bad", "worse", "counters", "shardless"):
        DelayQueue(name, client).push("x")
    RedisQueue("counters", client).put("x")
    for kind, shard in (("queue", None), ("delay", 0)):
        client.hset(Keys("redis_queue", kind, "counters", shard).meta, "put", "abc")  # type: ignore[arg-type]
    client.hset(PrefixKeys("redis_queue").registry, "delay:shardless", '{"max_deliveries": 5, "shards": 0}')
    client.delete(Keys("redis_queue", "delay", "bad", 0).waiting)
    client.set(Keys("redis_queue", "delay", "bad", 0).waiting, "x")
    client.set(Keys("redis_queue", "delay", "worse", 0).lateness, "x")
    samples = scrape(Collector(inspector))
    assert samples[("redis_queue_unreadable_queues",)] == 5
    assert samples["redis_queue_ready", "delay", "good"] == 1
    assert ("redis_queue_ready", "delay", "bad") not in samples
    assert samples["redis_queue_ready", "delay", "worse"] == 1


def test_an_outage_of_redis_is_exported(redis_server: RedisServer, client: redis.Redis) -> None:
    RedisQueue("orders", client).put("x")
    with FaultProxy(redis_server.address) as proxy, redis.Redis.from_url(proxy.url) as through:
        collector = Collector(Inspector(through))
        assert scrape(collector)[("redis_queue_up",)] == 1
        proxy.mode = "refuse"
        proxy.cut()
        assert scrape(collector) == {("redis_queue_up",): 0}
        proxy.mode = "pass"
        assert scrape(collector)["redis_queue_ready", "queue", "orders"] == 1


def test_registering_reads_nothing() -> None:
    registry = CollectorRegistry(auto_describe=True)
    away = redis.Redis(port=1)
    registry.register(Collector(Inspector(away)))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(Collector(Inspector(away)))


def test_a_scrape_changes_nothing_and_has_constant_cost(client: redis.Redis, inspector: Inspector) -> None:
    queue, timed = RedisQueue("orders", client), DelayQueue("timed", client)
    queue.put("x")
    timed.push("x")
    collector = Collector(inspector)
    scrape(collector)

    def commands() -> int:
        before = int(client.info("stats")["total_commands_processed"])
        scrape(collector)
        return int(client.info("stats")["total_commands_processed"]) - before

    few = commands()
    queue.put_many(range(5000))
    timed.push_many(range(5000))
    keys = client.dbsize()
    assert commands() == few < 40
    assert client.dbsize() == keys


# Metrics of workers, tasks and Celery's queues.


def test_workers_and_tasks_are_counted(client: redis.Redis) -> None:
    now = datetime.now(timezone.utc)
    tally = Tally(10, 2, 1, 3, Histogram.of([30] * 10))
    row = WorkerRow("one@host", now, now, busy=2, prefetched=3, keeper=False)
    Reports(client, "p").write(row, tallies={Series("shop.mail", "mail"): tally})
    Reports(client, "p").write(WorkerRow("two@host", now, now, loop_age=61.0))
    Reports(client, "p").write(WorkerRow("three@host", now, now, loop_age=50.0, keeper=True))
    for name, age in (("four@host", 20), ("five@host", 70)):
        seen = round(now.timestamp() * 1000) - age * 1000
        Reports(client, "p", lambda seen=seen: seen).write(WorkerRow(name, now, now))
    Failures(client, "p").keep([Failure("id", "shop.mail", "mail", "one@host", now)], 10, 7)
    samples, labels = scrape(Collector(Inspector(client, prefix="p"))), ("mail", "shop.mail")
    expected: Samples = {
        ("redis_queue_workers",): 4,
        ("redis_queue_workers_in_state", "alive"): 1,
        ("redis_queue_workers_in_state", "busy"): 0,
        ("redis_queue_workers_in_state", "silent"): 1,
        ("redis_queue_workers_in_state", "lost"): 1,
        ("redis_queue_workers_in_state", "stuck"): 2,
        ("redis_queue_workers_stuck",): 2,
        ("redis_queue_failures_kept",): 1,
        ("redis_queue_running_tasks",): 2,
        ("redis_queue_prefetched_tasks",): 3,
        ("redis_queue_keepers_dead",): 1,
        ("redis_queue_task_executed_total", *labels): 10,
        ("redis_queue_task_failed_total", *labels): 2,
        ("redis_queue_task_revoked_total", *labels): 3,
        ("redis_queue_task_duration_seconds_bucket", "0.05", *labels): 10,
        ("redis_queue_task_duration_seconds_sum", *labels): 0.3,
    }
    assert samples == {**samples, **expected}


def test_queues_are_counted(client: redis.Redis) -> None:
    rows = [
        CeleryQueueRow("mail", ready=5, in_flight=2, consumers=0, oldest_age=12.5),
        CeleryQueueRow("far", ready=None, consumers=3),
        CeleryQueueRow("broken", ready=1, error="not a list"),
    ]
    samples = scrape(Collector(Inspector(client), celery_queues=lambda: rows, due=lambda: {"mail": 7}))
    expected: Samples = {
        ("redis_queue_celery_ready", "mail"): 5,
        ("redis_queue_celery_in_flight", "mail"): 2,
        ("redis_queue_celery_consumers", "far"): 3,
        ("redis_queue_celery_oldest_age_seconds", "mail"): 12.5,
        ("redis_queue_celery_due_within_300s", "mail"): 7,
    }
    assert samples == {**samples, **expected}
    assert not any("broken" in labels for labels in samples)
    assert ("redis_queue_celery_ready", "far") not in samples


def _raise() -> Any:
    raise OSError("away")


@pytest.mark.parametrize("queues", [tuple, _raise])
def test_what_cannot_be_read_is_left_out(queues: Any) -> None:
    with redis.Redis(port=1, socket_timeout=0.1) as away:
        assert scrape(Collector(Inspector(away), celery_queues=queues)) == {("redis_queue_up",): 0}


def test_queues_are_counted_even_if_delayed_tasks_cannot_be_read(client: redis.Redis) -> None:
    rows = [CeleryQueueRow("mail", ready=5, consumers=0)]
    samples = scrape(Collector(Inspector(client), celery_queues=lambda: rows, due=_raise))
    assert samples["redis_queue_celery_ready", "mail"] == 5
    assert ("redis_queue_celery_due_within_300s", "mail") not in samples


# The metric of unique tasks: owned keys, and never a failure of the scrape.

KEYS = FlowKeys("redis_queue")


def value(client: redis.Redis, name: str = "redis_queue_unique_keys") -> float | None:
    """Return the value of a metric without labels; None if it is missing."""
    return scrape(Collector(Inspector(client))).get((name,))


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


def of_flows(client: redis.Redis) -> dict[tuple[str, str], float]:
    return {
        (name.removeprefix("redis_queue_flow_"), *labels): value  # type: ignore[misc]
        for (name, *labels), value in scrape(Collector(Inspector(client))).items()
        if name.startswith("redis_queue_flow_")
    }


def names(rows: Iterable[tuple[str, str]]) -> set[str]:
    return {flow for _, flow in rows}


def test_without_flows_there_are_no_metrics_of_flows(client: redis.Redis) -> None:
    assert of_flows(client) == {}


def test_each_flow_has_its_counts(client: redis.Redis, flows: Flows) -> None:
    for age in (30, 90, 10):
        send(client, f"tenant {age}", age)
    send(client, "a", 200, task="shop.sync", queue="other")
    client.hset(KEYS.running.decode(), "queue:mail", 4)
    flows.pause("shop.sync")
    flows.count_uncounted({"queue:mail": 2})
    flows.count_uncounted({"queue:mail": 5})
    found = of_flows(client)
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
    assert of_flows(client)["limit", "queue:mail"] == 0
    flows.set("queue:mail", limit=None)
    assert ("limit", "queue:mail") not in of_flows(client)


def test_the_age_is_that_of_messages_that_still_wait(client: redis.Redis, flows: Flows) -> None:
    assert of_flows(client)["oldest_age_seconds", "queue:mail"] == 0
    for age in (500, 100):
        send(client, "tenant", age)
    [key] = client.keys(f"{KEYS.messages('').decode()}*")
    client.rpop(key)
    assert of_flows(client)["oldest_age_seconds", "queue:mail"] == pytest.approx(100, abs=10)


def test_only_flows_with_most_messages_are_exported(client: redis.Redis, flows: Flows) -> None:
    for number in range(MAX_FLOWS):
        flows.pause(f"queue:quiet {number}")
    client.hset(KEYS.config.decode(), mapping={f"task {number}": "1 - - - - - - -" for number in range(300)})
    client.hset(KEYS.running.decode(), "task 299", 5)
    client.hset(KEYS.backlog.decode(), "task 17", 1)
    found = names(of_flows(client))
    assert len(found) == MAX_FLOWS
    assert {"task 299", "task 17"} < found
    assert sum(name.startswith("queue:quiet") for name in found) == MAX_FLOWS - 2


def test_many_keys_take_no_more_commands(client: redis.Redis, flows: Flows) -> None:
    inspector = Inspector(client)
    send(client, "first", 50)

    def cost() -> int:
        before = int(client.info("stats")["total_commands_processed"])
        assert any(age for _, (_, age) in flow_samples(inspector, inspector.now()))
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
    assert of_flows(client) == {}
    assert scrape(Collector(Inspector(client)))["redis_queue_ready", "queue", "orders"] == 1
