"""Settlement: acknowledged messages are settled in batches; none is lost, and none is settled twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
from kombu.connection import Connection

from redis_queue.celery.fetch.settlement import MAX_IN_BATCH
from redis_queue.store.scripts import load_scripts
from tests.support.celery.fetching import Taker, connected, fetch_of, publish, publish_all
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.wait import wait_until


def calls(client: redis.Redis) -> int:
    """Return how many scripts were called."""
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


def filled(connection: Any, count: int) -> Taker:
    """Return a consumer that has received *count* messages."""
    publish_all(connection, count)
    taker = Taker(connection, ["q"], prefetch=count)
    taker.take(count)
    return taker


@pytest.fixture
def proxied(redis_server: RedisServer, client: redis.Redis) -> Iterator[FaultProxy]:
    assert client.dbsize() == 0
    with FaultProxy(str(redis_server.socket)) as proxy:
        yield proxy


class TestBatches:
    def test_are_settled_by_one_script_each(self, redis_server: RedisServer, client: redis.Redis) -> None:
        with connected(redis_server) as connection:
            load_scripts(client)
            taker = filled(connection, 2 * MAX_IN_BATCH)
            before = calls(client)
            taker.settle()
            assert not client.exists("unacked", "unacked_index")
            # Two batches, a fetch that finds nothing, and the lock of a sweep.
            assert calls(client) - before <= 6

    def test_rejected_messages_are_settled_with_the_others(
        self, redis_server: RedisServer, client: redis.Redis
    ) -> None:
        with connected(redis_server) as connection:
            taker = filled(connection, 3)
            for message in taker.messages:
                message.reject()
            taker.messages.clear()
            assert client.hlen("unacked") == 3
            taker.settle()
            wait_until(
                lambda: taker.turn() or not client.exists("unacked", "unacked_index"),
                description="the settled messages",
            )
            assert taker.leases.held == {}

    def test_survive_a_flush_of_the_scripts(self, redis_server: RedisServer, client: redis.Redis) -> None:
        with connected(redis_server) as connection:
            taker = filled(connection, 3)
            client.script_flush()
            taker.settle()
            publish(connection, "next")
            assert taker.take(4)[-1] == "next"
            taker.settle()
            assert not client.exists("unacked", "unacked_index")
            assert taker.leases.lost == []

    def test_are_settled_when_the_channel_closes(self, redis_server: RedisServer, client: redis.Redis) -> None:
        with connected(redis_server) as connection:
            taker = filled(connection, 3)
            for message in taker.messages:
                message.ack()
            assert client.hlen("unacked") == 3
        assert not client.exists("unacked", "unacked_index", "q")
        assert taker.leases.held == {}

    def test_lost_leases_are_reported(self, redis_server: RedisServer, client: redis.Redis) -> None:
        with connected(redis_server) as connection:
            taker = filled(connection, 3)
            tag = taker.messages[1].delivery_tag
            client.zrem("unacked_index", tag)
            taker.settle()
            assert taker.leases.lost == [tag]

    def test_are_known_until_their_leases_are_dropped(
        self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with connected(redis_server) as connection:
            taker = filled(connection, 3)
            settlement = taker.leases.settlement
            release = settlement._release

            def drop(tags: list[str], *, lost: list[str]) -> None:
                # Otherwise the report of a renewal that missed them, read by another thread, would count as a loss.
                assert all(tag in taker.leases.settlement for tag in tags)
                release(tags, lost=lost)

            monkeypatch.setattr(settlement, "_release", drop)
            taker.settle()
            assert taker.leases.held == {}


class TestLostConnections:
    @pytest.mark.parametrize("answered", [False, True], ids=["request lost", "reply lost"])
    def test_leave_no_message_unsettled(self, proxied: FaultProxy, client: redis.Redis, *, answered: bool) -> None:
        # Without the script, the connection would be cut before Redis has executed it.
        load_scripts(client)
        with Connection(proxied.url) as connection:
            taker = filled(connection, 5)
            fetch = fetch_of(taker)
            for message in taker.messages:
                message.ack()
            if answered:
                taker.leases.settlement.flush(fetch.commands)
                wait_until(lambda: not client.exists("unacked"), description="the settled messages")
            proxied.cut()
            with pytest.raises(connection.connection_errors):
                connection.drain_events(timeout=10)
            assert len(taker.leases.settlement) == 5
            assert len(taker.leases.held) == 5
            wait_until(lambda: taker.turn() or not taker.leases.held, description="settled messages")
            assert not client.exists("unacked", "unacked_index", "q")
            # A batch that was sent again finds nothing, but the leases were not lost.
            assert taker.leases.lost == []

    def test_do_not_return_messages_that_are_to_be_settled(self, proxied: FaultProxy, client: redis.Redis) -> None:
        with Connection(proxied.url) as connection:
            taker = filled(connection, 5)
            for message in taker.messages:
                message.ack()
            proxied.cut()
            with suppress(*connection.connection_errors):
                taker.channel.close()
            assert not client.exists("q")
            assert len(taker.leases.settlement) == 5


def test_recovering_a_channel_returns_no_messages_that_are_to_be_settled(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    with connected(redis_server) as connection:
        taker = filled(connection, 3)
        taker.messages.pop().ack()
        taker.channel.basic_recover(requeue=True)
        assert client.llen("q") == 2
        taker.messages.clear()
        assert sorted(taker.take(5)) == [0, 0, 1, 1, 2]
        taker.settle()
        assert not client.exists("q", "unacked", "unacked_index")


class TestEarlyAcknowledgement:
    def test_is_on_its_way_before_the_task_starts(self, redis_server: RedisServer, client: redis.Redis) -> None:
        with connected(redis_server) as connection:
            taker = filled(connection, 2)
            tag = taker.messages[0].delivery_tag
            taker.channel.qos.settle_before_start(tag)
            wait_until(lambda: client.zcard("unacked_index") == 1, description="the settled message")
            taker.settle()
            assert not client.exists("unacked", "unacked_index")
            assert taker.leases.lost == []

    def test_frees_its_place_in_the_window_when_it_is_acknowledged(
        self, redis_server: RedisServer, client: redis.Redis
    ) -> None:
        with connected(redis_server) as connection:
            taker = filled(connection, 1)
            publish(connection, "next")
            taker.channel.qos.settle_before_start(taker.messages[0].delivery_tag)
            taker.turn()
            assert len(taker.got) == 1
            taker.settle()
            assert taker.take(2)[-1] == "next"
            taker.settle()
            assert not client.exists("unacked", "unacked_index")

    def test_is_not_undone_when_the_connection_is_lost(self, proxied: FaultProxy, client: redis.Redis) -> None:
        with Connection(proxied.url) as connection:
            taker = filled(connection, 2)
            proxied.cut()
            with suppress(*connection.connection_errors):
                taker.channel.qos.settle_before_start(taker.messages[0].delivery_tag)
            # As soon as its task has started.
            taker.messages[0].ack()
            taker.channel.close()
            # The task of the other one was not started.
            assert client.llen("q") == 1
            assert len(taker.leases.settlement) == 1
