"""The Prometheus collector has the numbers of the queues, and every scrape succeeds."""

from __future__ import annotations

import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from redis_queue import DelayQueue, RedisQueue
from redis_queue.basics.histogram import BOUNDS, Histogram
from redis_queue.celery.leases.leases import LeaseCounters
from redis_queue.delay.dispatch_log import Dispatches
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.metrics import OTHERS, Collector
from redis_queue.store.keys import Keys, PrefixKeys
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
    timed.dispatch_log.note(Dispatches(3, 2, Histogram.of([3, 400, 9e9])), dispatcher=SOMEBODY)
    samples = scrape(Collector(inspector))
    assert samples["redis_queue_dispatched_total", "timed"] == 3
    assert samples["redis_queue_dispatch_failed_total", "timed"] == 2
    assert samples["redis_queue_dispatchers", "timed"] == 1
    name = "redis_queue_dispatch_lateness_seconds"
    assert samples[f"{name}_count", "timed"] == 3
    assert samples[f"{name}_sum", "timed"] == pytest.approx(9e6 + 0.403)
    buckets = [samples[f"{name}_bucket", le, "timed"] for le in (*map(str, BOUNDS), "+Inf")]
    assert buckets == [1] * 6 + [2] * 8 + [3]


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
            timed.dispatch_log.note(Dispatches(number, 0, Histogram.of([7] * number)), dispatcher=SOMEBODY)

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
