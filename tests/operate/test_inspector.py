"""Inspector: it sees every queue, finds the one that is meant, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from redis_queue import ConfigurationError, DelayQueue, InvalidNameError, RedisQueue, StoreUnavailableError
from redis_queue.inspector import Inspector, QueueRow
from redis_queue.store.keys import Keys
from redis_queue.times import from_ms
from tests.support.clock import START
from tests.support.ports import HOST, free_port
from tests.support.store.stage import LATER, Stage, differences, snapshot


@pytest.fixture
def stage(client: redis.Redis) -> Stage:
    """A RedisQueue and a DelayQueue, both named "orders", with something in every state."""
    return Stage(client)


@pytest.fixture
def inspector(client: redis.Redis, stage: Stage) -> Inspector:
    """Sees both, on their clock."""
    return Inspector(client, clock=stage.clock)


class TestTheRows:
    def test_count_everything_in_both_kinds(self, inspector: Inspector) -> None:
        delay, queue = inspector.queues()

        first, in_a_minute = from_ms(START), from_ms(START + 60_000)
        assert queue == QueueRow(
            "queue",
            "orders",
            ready=2,
            delayed=1,
            in_flight=1,
            dead=1,
            put=5,
            oldest_at=first,
            next_due=in_a_minute,
        )
        assert delay == QueueRow(
            "delay", "orders", ready=1, delayed=1, in_flight=1, dead=1, put=4, oldest_at=first, next_due=first
        )

    def test_know_that_a_queue_is_paused(self, inspector: Inspector, stage: Stage) -> None:
        stage.queue.pause()

        assert [row.paused for row in inspector.queues()] == [False, True]

    def test_add_up_the_shards(self, client: redis.Redis, stage: Stage, inspector: Inspector) -> None:
        spread = DelayQueue("spread", client, clock=stage.clock, shards=4)
        spread.push_many(["x"] * 40)
        spread.ack_many(spread.claim(15))

        row = inspector.queues()[1]

        assert (row.name, row.ready, row.put, row.acked) == ("spread", 25, 40, 15)

    def test_tell_what_is_wrong_with_a_queue_and_show_the_others(
        self, client: redis.Redis, inspector: Inspector
    ) -> None:
        client.delete(Keys("redis_queue", "queue", "orders").waiting)
        client.set(Keys("redis_queue", "queue", "orders").waiting, "x")

        delay, queue = inspector.queues()

        assert "{redis_queue:queue:orders}:waiting is a string" in queue.error
        assert (queue.ready, delay.ready, delay.error) == (0, 1, "")

    def test_of_an_empty_prefix_are_none(self, client: redis.Redis, stage: Stage) -> None:
        assert Inspector(client, prefix="other").queues() == []


def test_the_overview_adds_up_and_tells_the_time(inspector: Inspector) -> None:
    overview = inspector.overview()

    assert overview.at == from_ms(START)
    assert [overview.total(count) for count in ("ready", "delayed", "in_flight", "dead")] == [3, 2, 2, 2]


def test_the_time_is_that_of_the_server(client: redis.Redis) -> None:
    seconds, micros = client.time()

    assert abs(Inspector(client).now() - from_ms(seconds * 1000 + micros / 1000)) < timedelta(seconds=5)


class TestFinding:
    def test_a_queue_has_the_settings_that_it_was_written_with(self, client: redis.Redis) -> None:
        RedisQueue("lines", client, max_deliveries=7).put("x")
        DelayQueue("lines", client, max_deliveries=8, shards=3).push("x")
        inspector = Inspector(client)

        assert inspector.queue("lines").settings.max_deliveries == 7
        assert inspector.delay_queue("lines").settings.max_deliveries == 8
        assert inspector.delay_queue("lines").settings.shards == 3
        assert [type(queue) for queue in inspector.named("lines")] == [DelayQueue, RedisQueue]

    @pytest.mark.parametrize("find", [Inspector.queue, Inspector.named])
    def test_an_unknown_name_raises_with_the_nearest(
        self, find: Callable[[Inspector, str], Any], inspector: Inspector
    ) -> None:
        with pytest.raises(InvalidNameError, match=r"no RedisQueue 'order' .*: did you mean 'orders'\?"):
            find(inspector, "order")

    def test_an_unknown_name_that_is_near_to_none_raises_with_all(self, inspector: Inspector) -> None:
        with pytest.raises(InvalidNameError, match="no DelayQueue 'zzz' under the prefix 'redis_queue': known are 'or"):
            inspector.delay_queue("zzz")

    def test_a_name_of_the_other_kind_is_unknown(self, client: redis.Redis) -> None:
        RedisQueue("lines", client).put("x")

        with pytest.raises(InvalidNameError, match="no DelayQueue 'lines' under the prefix 'redis_queue'"):
            Inspector(client).delay_queue("lines")

    def test_a_hostile_name_is_no_way_out_of_the_message(self, inspector: Inspector) -> None:
        with pytest.raises(InvalidNameError) as caught:
            inspector.queue("\x1b[2J\n{x}:*")

        assert str(caught.value).isprintable()


def test_expired_leases_are_counted(inspector: Inspector, stage: Stage) -> None:
    assert inspector.expired(stage.queue) == inspector.expired(stage.timed) == 0

    stage.clock.now += LATER

    assert inspector.expired(stage.queue) == inspector.expired(stage.timed) == 1
    assert stage.timed.put_back().returned == 1


READS: dict[str, Callable[[Inspector], Any]] = {
    "known": Inspector.known,
    "find": lambda inspector: inspector.find("queue", "orders"),
    "listing": lambda inspector: inspector.listing("ord"),
    "first": lambda inspector: inspector.first(1),
    "queues": Inspector.queues,
    "overview": Inspector.overview,
    "now": Inspector.now,
    "named": lambda inspector: inspector.named("orders"),
    "queue": lambda inspector: inspector.queue("orders"),
    "delay_queue": lambda inspector: inspector.delay_queue("orders"),
    "expired": lambda inspector: [inspector.expired(queue) for queue in inspector.named("orders")],
}


def test_every_public_method_but_open_is_among_the_reads() -> None:
    public = {name for name, value in vars(Inspector).items() if callable(value) and not name.startswith("_")}

    assert public - {"open"} == set(READS)


@pytest.mark.parametrize("name", READS)
def test_no_call_changes_anything(name: str, client: redis.Redis, inspector: Inspector, stage: Stage) -> None:
    stage.clock.now += LATER
    before = snapshot(client)

    READS[name](inspector)

    assert differences(before, snapshot(client)) == []


def test_a_bad_prefix_is_refused(client: redis.Redis) -> None:
    with pytest.raises(ConfigurationError, match="prefix=''"):
        Inspector(client, prefix="")


def test_a_redis_that_is_away_raises() -> None:
    with pytest.raises(StoreUnavailableError):
        Inspector(f"redis://{HOST}:{free_port()}/0")


def test_a_cluster_is_inspected_alike(cluster_client: redis.RedisCluster) -> None:
    DelayQueue("spread", cluster_client, shards=3).push_many(["x"] * 9)
    RedisQueue("lines", cluster_client).put("x", delay=60)
    overview = Inspector(cluster_client).overview()

    assert [(row.name, row.ready, row.delayed, row.error) for row in overview.queues] == [
        ("spread", 9, 0, ""),
        ("lines", 0, 1, ""),
    ]
    assert overview.queues[1].next_due is not None
    assert overview.at.year > 2000
