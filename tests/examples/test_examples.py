"""The small examples work."""

from __future__ import annotations

from pathlib import Path

import redis

from examples import limited, pipeline
from redis_queue import RedisQueue
from tests.support.wait import wait_until


def test_the_rate_limit_of_an_api_is_kept(client: redis.Redis, redis_url: str) -> None:
    api = limited.main(redis_url, count=15)
    assert sorted(api.taken) == list(range(15))
    assert api.refused > 0
    stats = RedisQueue("limited", client).stats()
    assert (stats.ready, stats.delayed, stats.in_flight, stats.dead) == (0, 0, 0, 0)


def test_a_file_is_processed_in_batches(client: redis.Redis, redis_url: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("order,customer\n" + "".join(f"{number},c{number % 3}\n" for number in range(1001)))
    assert pipeline.main(redis_url, file) == {"c0": 334, "c1": 334, "c2": 333}
    stats = RedisQueue("pipeline", client).stats()
    assert (stats.ready, stats.in_flight, stats.acked) == (0, 0, 1001)


def test_the_batch_of_a_killed_worker_is_processed_by_the_next_one(client: redis.Redis) -> None:
    queue = RedisQueue("pipeline", client, lease=0.05)
    pipeline.feed(queue, [{"customer": "c1"}] * 150)
    assert len(queue.get_many(100, block=False)) == 100
    wait_until(lambda: queue.put_back().returned, description="the lease to end")
    assert pipeline.work(queue, "customer") == {"c1": 150}
