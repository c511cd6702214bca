"""The inspector counts every queue and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue
from redis_queue.basics.options import Conditions
from redis_queue.basics.times import from_ms
from redis_queue.operate.access import access_to
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.items import Letters
from redis_queue.operate.queue_row import QueueRow
from redis_queue.store.keys import Keys
from tests.support.clock import START
from tests.support.recording import record_round_trips
from tests.support.store.stage import LATER, Stage, differences, snapshot
from tests.support.wait import must


@pytest.fixture
def inspector(client: redis.Redis, stage: Stage) -> Inspector:
    """An inspector of both queues, on their clock."""
    return Inspector(client, clock=stage.clock)


class TestRows:
    def test_count_everything_in_both_kinds(self, inspector: Inspector) -> None:
        delay, queue = inspector.queues()

        first, in_a_minute = from_ms(START), from_ms(START + 60_000)
        assert queue == QueueRow(
            "queue", "orders", ready=2, delayed=1, in_flight=1, dead=1, put=5, oldest_at=first, next_due=in_a_minute
        )
        assert delay == QueueRow(
            "delay",
            "orders",
            ready=1,
            delayed=1,
            in_flight=1,
            dead=1,
            put=4,
            oldest_at=first,
            next_due=first,
            dispatched=1,
        )

    def test_show_that_a_queue_is_paused(self, inspector: Inspector, stage: Stage) -> None:
        stage.queue.pause()

        assert [row.paused for row in inspector.queues()] == [False, True]

    def test_add_up_the_shards(self, client: redis.Redis, stage: Stage, inspector: Inspector) -> None:
        spread = DelayQueue("spread", client, clock=stage.clock, shards=4)
        spread.push_many(["x"] * 40)
        spread.ack_many(spread.claim(15))

        row = inspector.queues()[1]

        assert (row.name, row.ready, row.put, row.acked) == ("spread", 25, 40, 15)

    def test_show_the_error_of_a_broken_queue_and_the_others(self, client: redis.Redis, inspector: Inspector) -> None:
        client.delete(Keys("redis_queue", "queue", "orders").waiting)
        client.set(Keys("redis_queue", "queue", "orders").waiting, "x")

        delay, queue = inspector.queues()

        assert "{redis_queue:queue:orders}:waiting is a string" in queue.error
        assert (queue.ready, delay.ready, delay.error) == (0, 1, "")

    def test_are_empty_for_an_unused_prefix(self, client: redis.Redis, stage: Stage) -> None:
        assert Inspector(client, prefix="other").queues() == []


def test_the_overview_has_totals_and_the_time(inspector: Inspector) -> None:
    overview = inspector.overview()

    assert overview.at == from_ms(START)
    assert [overview.total(count) for count in ("ready", "delayed", "in_flight", "dead")] == [3, 2, 2, 2]


def test_the_time_is_that_of_the_server(client: redis.Redis) -> None:
    seconds, micros = client.time()

    assert abs(Inspector(client).now() - from_ms(seconds * 1000 + micros / 1000)) < timedelta(seconds=5)


def test_expired_leases_are_counted(inspector: Inspector, stage: Stage) -> None:
    assert inspector.expired(stage.queue) == inspector.expired(stage.timed) == 0

    stage.clock.now += LATER

    assert inspector.expired(stage.queue) == inspector.expired(stage.timed) == 1
    assert stage.timed.put_back().returned == 1


READS: dict[str, Callable[[Inspector], Any]] = {
    "queues": Inspector.queues,
    "overview": Inspector.overview,
    "now": Inspector.now,
    "expired": lambda inspector: [inspector.expired(queue) for queue in inspector.catalog.queues("orders")],
}


def test_every_public_method_is_among_the_reads() -> None:
    assert {name for name, value in vars(Inspector).items() if callable(value) and name[0] != "_"} == set(READS)


@pytest.mark.parametrize("name", READS)
def test_no_call_changes_anything(name: str, client: redis.Redis, inspector: Inspector, stage: Stage) -> None:
    stage.clock.now += LATER
    before = snapshot(client)

    READS[name](inspector)

    assert differences(before, snapshot(client)) == []


def test_a_cluster_can_be_inspected(cluster_client: redis.RedisCluster) -> None:
    DelayQueue("spread", cluster_client, shards=3).push_many(["x"] * 9)
    RedisQueue("lines", cluster_client).put("x", delay=60)
    overview = Inspector(cluster_client).overview()

    assert [(row.name, row.ready, row.delayed, row.error) for row in overview.queues] == [
        ("spread", 9, 0, ""),
        ("lines", 0, 1, ""),
    ]
    assert overview.queues[1].next_due is not None
    assert overview.at.year > 2000


def test_dead_letters_of_many_queues_are_read_once(client: redis.Redis) -> None:
    for number in range(50):
        queue = RedisQueue(f"q{number}", client)
        queue.put(number)
        queue.nack(must(queue.get(block=False)), dead=True)
    with record_round_trips() as trips:
        assert len([*Letters(access_to(client, "redis_queue"), None, Conditions()).all()]) == 50
    assert len(trips) <= 60
