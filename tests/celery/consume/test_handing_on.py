"""What atomic fetch took goes to the worker one by one, and is nobody's secret when the channel ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.support.celery.fetching import Taker, connected, publish
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

pytestmark = pytest.mark.celery


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    """A client of it."""
    with server.client() as client:
        yield client


def held(taker: Taker) -> int:
    """Return how many messages its channel took and did not hand on."""
    return len(taker.channel._received)


def test_a_turn_hands_on_one_and_the_others_wait_on_record(server: RedisServer, client: redis.Redis) -> None:
    with connected(server) as connection:
        for number in range(4):
            publish(connection, number)
        taker = Taker(connection, ["q"], prefetch=4)
        wait_until(lambda: connection.drain_events(timeout=1) or taker.got, description="the first")
        assert (taker.got, held(taker), client.zcard("unacked_index")) == ([0], 3, 4)
        assert taker.take(4) == [0, 1, 2, 3]
        taker.settle()
    assert client.zcard("unacked_index") == 0


def test_what_was_not_handed_on_goes_back_with_the_channel(server: RedisServer, client: redis.Redis) -> None:
    with connected(server) as connection:
        for number in range(4):
            publish(connection, number)
        taker = Taker(connection, ["q"], prefetch=4)
        wait_until(lambda: connection.drain_events(timeout=1) or taker.got, description="the first")
        taker.settle()
        assert held(taker) == 3
    assert (client.llen("q"), client.zcard("unacked_index"), client.hlen("unacked")) == (3, 0, 0)
    assert taker.leases.held == {}


def test_an_answer_that_comes_after_the_last_queue_was_cancelled_is_no_error(
    server: RedisServer, client: redis.Redis
) -> None:
    with connected(server) as connection:
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


def test_answers_do_not_pile_up_while_there_is_work(server: RedisServer, client: redis.Redis) -> None:
    with connected(server) as connection:
        taker = Taker(connection, ["q", "other"], prefetch=0)
        for number in range(50):
            publish(connection, number)
            publish(connection, number, "other")
        asked = client.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"]
        taker.take(100)
        taker.settle()
        # One for each that was handed on, and one for the look that finds nothing.
        assert client.info("commandstats")["cmdstat_ping"]["calls"] - asked <= 102


def test_redis_pys_own_check_of_idle_connections_does_not_end_the_look(
    server: RedisServer, client: redis.Redis
) -> None:
    with connected(server, health_check_interval=1) as connection:
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
