"""Atomic fetch delivers its messages to the worker one by one and returns the rest when the channel closes."""

from __future__ import annotations

import pytest
import redis

from tests.support.celery.fetching import Taker, connected, publish
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

pytestmark = pytest.mark.celery


def held(taker: Taker) -> int:
    """Return the number of messages that the channel took and did not deliver."""
    return len(taker.channel._received)


def test_one_message_is_delivered_per_turn_and_the_others_stay_recorded(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    with connected(redis_server) as connection:
        for number in range(4):
            publish(connection, number)
        taker = Taker(connection, ["q"], prefetch=4)
        wait_until(lambda: connection.drain_events(timeout=1) or taker.got, description="the first")
        assert (taker.got, held(taker), client.zcard("unacked_index")) == ([0], 3, 4)
        assert taker.take(4) == [0, 1, 2, 3]
        taker.settle()
    assert client.zcard("unacked_index") == 0


def test_undelivered_messages_are_returned_when_the_channel_closes(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    with connected(redis_server) as connection:
        for number in range(4):
            publish(connection, number)
        taker = Taker(connection, ["q"], prefetch=4)
        wait_until(lambda: connection.drain_events(timeout=1) or taker.got, description="the first")
        taker.settle()
        assert held(taker) == 3
    assert (client.llen("q"), client.zcard("unacked_index"), client.hlen("unacked")) == (3, 0, 0)
    assert taker.leases.held == {}


def test_reply_after_the_last_queue_was_cancelled_is_not_an_error(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    with connected(redis_server) as connection:
        taker = Taker(connection, ["q"], prefetch=4)
        publish(connection, "first")
        assert taker.take(1) == ["first"]
        taker.settle()
        taker.consumer.cancel()
        publish(connection, "second")
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.3)
        assert client.llen("q") == 1
        taker.consumer.consume()
        assert taker.take(2) == ["first", "second"]
        taker.settle()


def test_replies_do_not_accumulate_under_load(redis_server: RedisServer, client: redis.Redis) -> None:
    with connected(redis_server) as connection:
        taker = Taker(connection, ["q", "other"], prefetch=0)
        for number in range(50):
            publish(connection, number)
            publish(connection, number, "other")
        asked = client.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"]
        taker.take(100)
        taker.settle()
        # One request for each delivered message, and one that finds nothing.
        assert client.info("commandstats")["cmdstat_ping"]["calls"] - asked <= 102


def test_health_check_of_redis_py_does_not_end_the_polling(redis_server: RedisServer, client: redis.Redis) -> None:
    with connected(redis_server, health_check_interval=1) as connection:
        taker = Taker(connection, ["q"], prefetch=1)
        publish(connection, "first")
        taker.take(1)
        taker.settle()
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=1.2)
        taker.channel.look_again()
        publish(connection, "second")
        assert taker.take(2) == ["first", "second"]
        taker.settle()
