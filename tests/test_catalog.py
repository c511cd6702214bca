"""The catalog finds and opens every queue, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from redis_queue import ConfigurationError, DelayQueue, InvalidNameError, RedisQueue, StoreUnavailableError
from redis_queue.catalog import Catalog
from tests.support.ports import HOST, free_port
from tests.support.store.stage import Stage, differences, snapshot


@pytest.fixture
def catalog(client: redis.Redis, stage: Stage) -> Catalog:
    """A catalog of both queues, on their clock."""
    return Catalog(client, clock=stage.clock)


class TestFinding:
    def test_a_queue_has_the_settings_that_it_was_written_with(self, client: redis.Redis) -> None:
        RedisQueue("lines", client, max_deliveries=7).put("x")
        DelayQueue("lines", client, max_deliveries=8, shards=3).push("x")
        catalog = Catalog(client)

        assert catalog.queue("lines").settings.max_deliveries == 7
        assert catalog.delay_queue("lines").settings.max_deliveries == 8
        assert catalog.delay_queue("lines").settings.shards == 3
        assert [type(queue) for queue in catalog.queues("lines")] == [DelayQueue, RedisQueue]

    @pytest.mark.parametrize("find", [Catalog.queue, Catalog.queues])
    def test_an_unknown_name_raises_with_the_nearest(
        self, find: Callable[[Catalog, str], Any], catalog: Catalog
    ) -> None:
        with pytest.raises(InvalidNameError, match=r"no RedisQueue 'order' .*: did you mean 'orders'\?"):
            find(catalog, "order")

    def test_an_unknown_name_without_a_near_one_raises_with_all(self, catalog: Catalog) -> None:
        with pytest.raises(InvalidNameError, match="no DelayQueue 'zzz' under the prefix 'redis_queue': known are 'or"):
            catalog.delay_queue("zzz")

    def test_a_name_of_the_other_kind_is_unknown(self, client: redis.Redis) -> None:
        RedisQueue("lines", client).put("x")

        with pytest.raises(InvalidNameError, match="no DelayQueue 'lines' under the prefix 'redis_queue'"):
            Catalog(client).delay_queue("lines")

    def test_a_hostile_name_is_escaped_in_the_message(self, catalog: Catalog) -> None:
        with pytest.raises(InvalidNameError) as caught:
            catalog.queue("\x1b[2J\n{x}:*")

        assert str(caught.value).isprintable()


READS: dict[str, Callable[[Catalog], Any]] = {
    "known": Catalog.known,
    "find": lambda catalog: catalog.find("queue", "orders"),
    "listing": lambda catalog: catalog.listing("ord"),
    "first": lambda catalog: catalog.first(1),
    "open": lambda catalog: [catalog.open(known) for known in catalog.known()],
    "queue": lambda catalog: catalog.queue("orders"),
    "delay_queue": lambda catalog: catalog.delay_queue("orders"),
    "queues": Catalog.queues,
}


def test_every_public_method_is_among_the_reads() -> None:
    assert {name for name, value in vars(Catalog).items() if callable(value) and name[0] != "_"} == set(READS)


@pytest.mark.parametrize("name", READS)
def test_no_call_changes_anything(name: str, client: redis.Redis, catalog: Catalog) -> None:
    before = snapshot(client)

    READS[name](catalog)

    assert differences(before, snapshot(client)) == []


def test_a_bad_prefix_is_refused(client: redis.Redis) -> None:
    with pytest.raises(ConfigurationError, match="prefix=''"):
        Catalog(client, prefix="")


def test_an_unreachable_redis_raises() -> None:
    with pytest.raises(StoreUnavailableError):
        Catalog(f"redis://{HOST}:{free_port()}/0")
