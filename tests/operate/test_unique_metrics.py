"""The metric of unique tasks: owned keys, and never a failure of the scrape."""

from __future__ import annotations

import pytest
import redis
from prometheus_client import CollectorRegistry

from redis_queue.operate.inspector import Inspector
from redis_queue.operate.metrics import Collector
from redis_queue.store.keys import FlowKeys
from redis_queue.unique.owners import Owners, field_of, new_token

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
