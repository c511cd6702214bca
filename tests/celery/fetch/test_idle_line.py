"""Idle workers with the same queues: a message wakes one of them and the next listener, and none waits for long."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from redis_queue.celery.fetch import fetch as fetches
from redis_queue.celery.fetch.fetch import CHECK_INTERVAL
from tests.support.celery.fetching import Taker, connected, fetch_of, is_idle, publish, wait_until_idle
from tests.support.servers import RedisServer
from tests.support.wait import must, wait_until

LINE, LISTENER = "redis_queue:idle:*", "redis_queue:listener:*"


class Idle:
    """Several consumers in this process, each with its own connections."""

    def __init__(self, server: RedisServer, stack: ExitStack) -> None:
        self._server = server
        self._stack = stack
        self.takers: list[Taker] = []

    def add(self, number: int, queues: tuple[str, ...] = ("q",), prefetch: int = 8, **options: Any) -> list[Taker]:
        """Add consumers that wait for messages of *queues*."""
        added = []
        for _ in range(number):
            connection = self._stack.enter_context(connected(self._server, **options))
            taker = Taker(connection, list(queues), prefetch)
            self.takers.append(taker)
            added.append(taker)
            wait_until_idle(taker)
        return added

    def turn_all(self) -> None:
        for taker in self.takers:
            taker.turn()

    def woken(self) -> list[Taker]:
        """Return those that Redis has told something."""
        ends = {fetch_of(taker).wakeups.socket: taker for taker in self.takers if taker.channel._fetch is not None}
        takers = {end.fileno(): taker for end, taker in ends.items() if end.fileno() >= 0}
        # Not select: kombu keeps the pools of all apps of a process, which may have more than 1,024 descriptors.
        poll = select.poll()
        for number in takers:
            poll.register(number, select.POLLIN)
        told = {number for number, _ in poll.poll(0)}
        return [taker for number, taker in takers.items() if number in told]

    def listener(self, client: redis.Redis) -> Taker:
        (key,) = client.keys(LISTENER)
        channel = must(client.get(key))
        open_ones = (taker for taker in self.takers if taker.channel._fetch is not None)
        return next(taker for taker in open_ones if fetch_of(taker)._channel == channel.decode())


@pytest.fixture
def idle(redis_server: RedisServer, client: redis.Redis) -> Iterator[Idle]:
    assert client.dbsize() == 0
    with ExitStack() as stack:
        yield Idle(redis_server, stack)


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle consumers that do not look for messages by themselves during a test."""
    monkeypatch.setattr(fetches, "CHECK_INTERVAL", 600.0)
    monkeypatch.setattr(fetches, "MAX_LOOK", 600.0)


@pytest.mark.usefixtures("unasked")
class TestWakeUps:
    def test_a_message_wakes_the_listener_and_the_next_one(
        self, idle: Idle, client: redis.Redis, redis_server: RedisServer
    ) -> None:
        idle.add(12)
        with connected(redis_server) as producer:
            for number in range(5):
                first = idle.listener(client)
                publish(producer, number)
                wait_until(idle.woken, description="the wake-up")
                assert idle.woken() == [first]
                wait_until(lambda: first.turn() or number in first.got, description="the message")  # noqa: B023
                second = idle.woken()
                assert len(second) == 1
                wait_until_idle(second[0])
                assert idle.listener(client) is second[0] is not first
                assert not idle.woken()
                first.settle()
                wait_until_idle(first)
                assert not idle.woken()
        assert client.zcard(client.keys(LINE)[0]) == 11

    def test_consumers_take_turns(self, idle: Idle, client: redis.Redis, redis_server: RedisServer) -> None:
        takers = idle.add(4)
        with connected(redis_server) as producer:
            for number in range(8):
                publish(producer, number)
                wait_until(
                    lambda: idle.turn_all() or sum(len(taker.got) for taker in takers) == number + 1,  # noqa: B023
                    description="the message",
                )
                wait_until(lambda: idle.turn_all() or not idle.woken(), description="quiet")
        assert sorted(len(taker.got) for taker in takers) == [2, 2, 2, 2]

    def test_idle_consumers_share_a_burst(self, idle: Idle, client: redis.Redis, redis_server: RedisServer) -> None:
        takers = idle.add(4, prefetch=64)
        with connected(redis_server) as producer:
            for number in range(16):
                publish(producer, number)
        wait_until(lambda: idle.turn_all() or sum(len(taker.got) for taker in takers) == 16, description="the messages")
        assert max(len(taker.got) for taker in takers) <= 6

    def test_sets_of_queues_have_a_listener_each(
        self, idle: Idle, client: redis.Redis, redis_server: RedisServer
    ) -> None:
        for queues in (("a",), ("b",), ("b", "a")):
            idle.add(2, queues)
        assert len(client.keys(LISTENER)) == 3
        with connected(redis_server) as producer:
            publish(producer, "x", "b", priority=6)
        wait_until(lambda: len(idle.woken()) == 2, description="two listeners")
        assert {tuple(sorted(taker.channel.active_queues)) for taker in idle.woken()} == {("b",), ("a", "b")}
        wait_until(
            lambda: idle.turn_all() or [taker.got for taker in idle.takers if taker.got] == [["x"]],
            description="the message",
        )

    def test_a_listener_that_cancels_its_consumer_wakes_the_next(
        self, idle: Idle, client: redis.Redis, redis_server: RedisServer
    ) -> None:
        first, second = idle.add(2)
        assert idle.listener(client) is first
        first.consumer.cancel()
        wait_until(idle.woken, description="the wake-up")
        wait_until_idle(second)
        assert idle.listener(client) is second

    def test_a_listener_that_closes_wakes_the_next(self, idle: Idle, client: redis.Redis) -> None:
        first, second, _ = idle.add(3)
        assert idle.listener(client) is first
        first.channel.close()
        wait_until(lambda: second.turn() or (is_idle(second) and idle.listener(client) is second), description="it")
        assert not client.exists("unacked")

    def test_consumers_that_are_gone_are_skipped(
        self, idle: Idle, client: redis.Redis, redis_server: RedisServer
    ) -> None:
        first, second, third = idle.add(3)
        fetch_of(second).close()
        with connected(redis_server) as producer:
            publish(producer, "x")
        wait_until(lambda: first.turn() or first.got, description="the message")
        assert idle.woken() == [third]


@pytest.mark.usefixtures("unasked")
class TestMissedWakeUps:
    def test_a_listener_that_hangs_is_replaced_by_the_one_that_looks(
        self, idle: Idle, client: redis.Redis, redis_server: RedisServer
    ) -> None:
        first, second, third = idle.add(3)
        with connected(redis_server) as producer:
            publish(producer, "x")
            fetch_of(second).look_at = 0.0
            second.channel.look()
            wait_until(lambda: second.turn() or second.got == ["x"], description="the message")
            wait_until_idle(third)
            assert idle.listener(client) is third
            # The old one finds nothing and joins the line.
            wait_until_idle(first)
            assert idle.listener(client) is third

    def test_a_listener_that_is_gone_is_replaced_by_the_one_that_looks(self, idle: Idle, client: redis.Redis) -> None:
        first, second = idle.add(2)
        fetch_of(first).close()
        fetch_of(second).look_at = 0.0
        second.channel.look()
        wait_until(
            lambda: second.turn() or (is_idle(second) and idle.listener(client) is second), description="the listener"
        )


def test_workers_in_a_short_line_look_at_least_every_second(idle: Idle) -> None:
    first, *others = idle.add(4)
    now = time.monotonic()
    assert all(fetch_of(taker).look_at - now <= CHECK_INTERVAL for taker in others)
    assert fetch_of(first).look_at - now > CHECK_INTERVAL


@pytest.mark.parametrize(
    ("strategy", "order"),
    [("round_robin", ["a0", "b0", "a1", "b1", "a2"]), ("priority", ["a0", "a1", "a2", "b0", "b1"])],
)
def test_the_order_of_queues_is_that_of_kombu(
    redis_server: RedisServer, client: redis.Redis, strategy: str, order: list[str]
) -> None:
    with connected(redis_server, queue_order_strategy=strategy) as connection:
        for name in ("b0", "b1", "a0", "a1", "a2"):
            publish(connection, name, name[0])
        taker = Taker(connection, ["a", "b"], prefetch=5)
        assert taker.take(5) == order
        taker.settle()
