"""Metrics of real workers and consumers."""

import subprocess
import sys

import redis
from prometheus_client import CollectorRegistry

from redis_queue import RedisQueue
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.metrics import Collector
from tests.support.celery.fleet import Fleet, send
from tests.support.servers import RedisServer
from tests.support.wait import wait_until


def registry_of(client: redis.Redis) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Collector(Inspector(client)))
    return registry


def test_fifty_delayed_tasks_count_as_fifty_punctual_dispatches() -> None:
    with RedisServer() as store, store.client() as client:
        fleet = Fleet(store, client, f"redis+socket://{store.socket}", "delaying")
        registry = registry_of(client)

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"redis_queue_{name}", {"queue": "scheduled", **labels})

        with fleet.worker().ready() as worker:
            delayed = fleet.delayed()
            for _ in range(50):
                send(delayed, 0.5)
            fleet.wait_for(50)
            wait_until(lambda: value("dispatched_total") == 50, description="all tasks to be counted")
            assert value("dispatch_failed_total") == 0
            assert value("dispatch_lateness_seconds_count") == 50
            assert value("dispatch_lateness_seconds_bucket", le="+Inf") == 50
            assert value("dispatch_lateness_seconds_bucket", le="10.0") == 50
            assert value("dispatchers") == 1
            assert [value(name, kind="delay") for name in ("ready", "delayed", "in_flight", "dead")] == [0] * 4
            assert value("put_total", kind="delay") == 50
            assert worker.finish() == 0
        assert value("dispatchers") == 0


TAKE_AND_HANG = """
import sys, redis_queue
queue = redis_queue.RedisQueue("orders", sys.argv[1], lease=0.2)
assert queue.get(timeout=10)
print("taken", flush=True)
sys.stdin.read()
"""


def test_killed_consumer_counts_as_one_put_back(redis_server: RedisServer, client: redis.Redis) -> None:
    queue = RedisQueue("orders", client)
    queue.put("x")
    command = [sys.executable, "-c", TAKE_AND_HANG, redis_server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as consumer:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "taken\n"
        consumer.kill()
    wait_until(lambda: queue.put_back().returned, description="the lease to expire")
    registry, labels = registry_of(client), {"kind": "queue", "queue": "orders"}
    found = {name: registry.get_sample_value(f"redis_queue_{name}_total", labels) for name in ("put_back", "acked")}
    assert found == {"put_back": 1, "acked": 0}
