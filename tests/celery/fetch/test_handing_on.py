"""Atomic fetch hands its messages on in turns, settles in time, and returns the rest when the channel closes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from kombu.entity import Queue

from redis_queue.celery.fetch.channel import TURN
from redis_queue.celery.fetch.fetch import Fetch
from redis_queue.celery.fetch.poller import FetchingPoller
from tests.support.celery.fetching import Taker, connected, fetch_of, publish, publish_all
from tests.support.servers import RedisServer
from tests.support.wait import wait_until


def held(taker: Taker) -> int:
    """Return the number of messages that the channel took and did not deliver."""
    return len(taker.channel._received)


def with_long_tasks(connection: Any, count: int) -> Taker:
    """Return the consumer of *count* messages, numbers from 0, which take longer than a turn each."""
    publish_all(connection, count)
    taker = Taker(connection, ["q"], prefetch=count)
    make_long(taker)
    return taker


def make_long(taker: Taker) -> None:
    """Let each message take longer than a turn."""

    def work(_: Any, message: Any) -> None:
        taker.got.append(message.payload)
        taker.messages.append(message)
        end = time.monotonic() + 2 * TURN
        while time.monotonic() < end:
            pass

    taker.consumer.callbacks = [work]


def test_fetched_messages_are_handed_on_in_one_turn(redis_server: RedisServer, client: redis.Redis) -> None:
    with connected(redis_server) as connection:
        publish_all(connection, 4)
        taker = Taker(connection, ["q"], prefetch=4)
        wait_until(lambda: connection.drain_events(timeout=1) or taker.got, description="the first")
        assert (taker.got, held(taker), client.zcard("unacked_index")) == ([0, 1, 2, 3], 0, 4)
        taker.settle()
    assert client.zcard("unacked_index") == 0


def test_long_tasks_have_a_turn_each_and_the_others_stay_recorded(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    with connected(redis_server) as connection:
        taker = with_long_tasks(connection, 4)
        for count in range(1, 5):
            wait_until(
                lambda count=count: connection.drain_events(timeout=1) or len(taker.got) == count,  # type: ignore[misc]
                description="the next",
            )
            assert (held(taker), client.zcard("unacked_index")) == (4 - count, 4)
        taker.settle()


def test_what_was_done_is_settled_before_a_long_task(redis_server: RedisServer, client: redis.Redis) -> None:
    with connected(redis_server) as connection:
        publish(connection, "first")
        publish(connection, "second")
        taker = Taker(connection, ["q"], prefetch=2)
        in_flight: list[int] = []

        def work(_: Any, message: Any) -> None:
            taker.got.append(message.payload)
            wait_until(lambda: client.zcard("unacked_index") == 2 - len(in_flight), description="settled tasks")
            in_flight.append(1)
            end = time.monotonic() + 2 * TURN
            while time.monotonic() < end:
                pass
            message.ack()

        taker.consumer.callbacks = [work]
        assert taker.take(2) == ["first", "second"]


def test_a_reply_that_comes_before_a_long_task_may_put_another_message_first(redis_server: RedisServer) -> None:
    with connected(redis_server) as connection:
        taker = with_long_tasks(connection, 4)
        # As messages of a flow do whose turn it is.
        taker.channel._prepare_for_long_task = lambda: taker.channel._received.rotate(1) or True
        assert sorted(taker.take(4)) == [0, 1, 2, 3]
        taker.settle()


def test_more_messages_are_asked_for_before_the_last_is_handed_on(
    redis_server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_hand: list[int] = []
    ask = Fetch.send

    def asked(self: Fetch, *arguments: Any, **options: Any) -> None:
        in_hand.append(held(taker))
        ask(self, *arguments, **options)

    with connected(redis_server) as connection:
        publish_all(connection, 16)
        taker = Taker(connection, ["q"], prefetch=8)
        make_long(taker)
        monkeypatch.setattr(Fetch, "send", asked)

        def all_came() -> bool:
            connection.drain_events(timeout=1)
            taker.messages.pop().ack()
            return len(taker.got) == 16

        wait_until(all_came, description="all messages")
        assert any(in_hand)
        taker.settle()
    assert not client.exists("q", "unacked", "unacked_index")


def test_messages_that_were_not_handed_on_are_returned_when_the_channel_closes(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    before = len(client.client_list())
    with connected(redis_server) as connection:
        taker = with_long_tasks(connection, 4)
        wait_until(lambda: connection.drain_events(timeout=1) or taker.got, description="the first")
        taker.messages.pop().ack()
        assert held(taker) == 3
    wait_until(lambda: len(client.client_list()) == before, description="the end of its connections")
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


def test_messages_of_a_cancelled_queue_are_returned_in_order(redis_server: RedisServer, client: redis.Redis) -> None:
    with connected(redis_server) as connection:
        publish_all(connection, 4)
        publish(connection, "other", "p")
        taker = Taker(connection, ["q", "p"], prefetch=5)
        make_long(taker)
        wait_until(lambda: connection.drain_events(timeout=1) or taker.got, description="the first")
        taker.consumer.cancel_by_queue("q")
        assert (client.llen("q"), client.zcard("unacked_index")) == (4 - len({0} & {*taker.got}), 2)
        taker.consumer.add_queue(Queue("q"))
        taker.consumer.consume()
        assert sorted(taker.take(5), key=str) == [0, 1, 2, 3, "other"]
        assert [number for number in taker.got if number != "other"] == [0, 1, 2, 3]
        taker.settle()


def test_queue_that_is_added_is_consumed_at_once(redis_server: RedisServer) -> None:
    with connected(redis_server) as connection:
        taker = Taker(connection, ["q"], prefetch=1)
        publish(connection, "first")
        taker.take(1)
        taker.settle()
        # This worker listens, and looks for messages itself after 8 s at the earliest.
        publish(connection, "second", "p")
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
        taker.consumer.add_queue(Queue("p"))
        taker.consumer.consume()
        assert taker.take(2) == ["first", "second"]
        taker.settle()


def test_commands_do_not_grow_with_the_messages(redis_server: RedisServer, client: redis.Redis) -> None:
    with connected(redis_server) as connection:
        taker = Taker(connection, ["q", "other"], prefetch=0)
        for number in range(50):
            publish(connection, number)
            publish(connection, number, "other")
        asked = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
        taker.take(100)
        taker.settle()
        # One fetch takes all, one finds nothing, two batches are settled.
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] - asked <= 6


def test_looks_without_a_wake_up_find_messages(redis_server: RedisServer, client: redis.Redis) -> None:
    with connected(redis_server, health_check_interval=1) as connection:
        taker = Taker(connection, ["q"], prefetch=1)
        publish(connection, "first")
        taker.take(1)
        taker.settle()
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.5)
        fetch = fetch_of(taker)
        # A wake-up that is lost.
        fetch.commands.call("CLIENT", "TRACKING", "OFF")
        publish(connection, "second")
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.3)
        fetch.look_at = 0.0
        taker.channel.look()
        assert taker.take(2) == ["first", "second"]
        taker.settle()


class Loop:
    """An event loop whose timers the test fires."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[..., Any], tuple[Any, ...]]] = []

    def call_later(self, delay: float, function: Callable[..., Any], *args: Any) -> None:
        self.timers.append((delay, function, args))

    def fire(self) -> None:
        timers, self.timers = self.timers, []
        for _, function, args in timers:
            function(*args)


class Channel:
    """A channel that has something to settle at a time."""

    def __init__(self, settles_at: float) -> None:
        self.settles_at = settles_at
        self.settled = 0

    def settle(self) -> None:
        self.settled += 1
        self.settles_at = math.inf


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def poller(loop: Loop) -> Iterator[FetchingPoller]:
    """A poller on the loop."""
    made = FetchingPoller()
    made.use_hub(loop)
    yield made
    made.close()


def add(poller: FetchingPoller, settles_at: float) -> Channel:
    channel = Channel(settles_at)
    poller._channels.add(channel)
    return channel


def test_a_timer_settles_what_is_due(poller: FetchingPoller, loop: Loop) -> None:
    now = time.monotonic()
    due, other = add(poller, now), add(poller, math.inf)
    poller.settle_at(now + 0.001)
    loop.fire()
    assert (due.settled, other.settled) == (1, 0)
    assert loop.timers == []


def test_a_timer_leaves_what_came_after_the_rest_was_settled(poller: FetchingPoller, loop: Loop) -> None:
    now = time.monotonic()
    later = add(poller, now + 60)
    poller.settle_at(now + 0.001)
    loop.fire()
    assert later.settled == 0
    [(delay, _, _)] = loop.timers
    assert 50 < delay <= 60


def test_a_full_batch_is_settled_at_once(poller: FetchingPoller) -> None:
    full = add(poller, time.monotonic() + 60)
    poller.settle_at(0.0)
    assert full.settled == 1
