"""Handlers with the same key never overlap; a handler without the lock is retried later, uncounted."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis

from redis_queue import (
    Consumer,
    InvalidDelayError,
    InvalidNameError,
    InvalidValueError,
    Lock,
    Message,
    Nack,
    RedisQueue,
    current_lock,
    serialized,
)
from tests.support.wait import wait_until


@pytest.fixture
def queue(client: redis.Redis) -> RedisQueue:
    """A queue whose messages become dead letters after the second delivery."""
    return RedisQueue("work", client, max_deliveries=2, poll_interval=0.05)


@pytest.fixture
def dead() -> RedisQueue:
    return RedisQueue("work", redis.Redis(unix_socket_path="/nonexistent"))


def test_two_consumers_never_overlap_and_waiting_is_not_counted(queue: RedisQueue) -> None:
    inside: list[int] = []
    seen: list[int] = []
    deliveries: list[int] = []

    @serialized(queue, key="customer:{message.body[customer]}", retry_in=0.03)
    def handle(message: Message) -> None:
        inside.append(1)
        assert len(inside) == 1
        # Long enough for the other threads to find the lock taken.
        queue.client.blpop(["nothing"], timeout=0.02)
        deliveries.append(message.deliveries)
        seen.append(message.body["number"])
        inside.pop()

    queue.put_many([{"customer": 7, "number": number} for number in range(12)])
    consumers = [Consumer(queue, handle, concurrency=2) for _ in range(2)]
    threads = [threading.Thread(target=consumer.run) for consumer in consumers]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(seen) == 12, description="all messages to be handled")
    finally:
        for consumer in consumers:
            consumer.stop()
        for thread in threads:
            thread.join()
    assert sorted(seen) == list(range(12))
    assert set(deliveries) == {1}
    stats = queue.stats()
    assert (stats.dead, len(queue)) == (0, 0)
    assert stats.redelivered > 0


def do_nothing(message: Any) -> None:
    """Handle a message."""


def nack_of(handle: Any, argument: str) -> Nack:
    with pytest.raises(Nack) as caught:
        handle(argument)
    return caught.value


def test_a_taken_lock_is_an_uncounted_nack(queue: RedisQueue) -> None:
    @serialized(queue, key="all", retry_in=lambda name: {"slow": 60, "fast": 1}[name])
    def handle(name: str) -> bool:
        return current_lock() is not None

    assert handle("slow")
    assert current_lock() is None
    found = []
    with Lock("all", queue.client).hold():
        # The thread that holds the lock may continue.
        assert handle("slow")
        thread = threading.Thread(target=lambda: found.append(nack_of(handle, "slow")))
        thread.start()
        thread.join()
    assert not found[0].counted
    assert 60 <= found[0].delay <= 72
    assert "'all'" in found[0].reason


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"key": "customer:{customer}"}, "unknown argument 'customer': handle takes message"),
        ({"key": "customer:{}"}, "unknown argument ''"),
        ({"key": "customer:{0}"}, "unknown argument '0'"),
        ({"key": "customer:{"}, "key='customer:{'"),
        ({"key": 7}, "key=7: must be a format string"),
        ({"retry_in": float("nan")}, "retry_in=nan"),
        ({"retry_in": -1}, "retry_in=-1"),
        ({"retry_in": 0}, "retry_in=0: must be 0.01 seconds or more"),
        ({"retry_in": 1e12}, "retry_in=1000000000000.0: must be at most ten years"),
        ({"retry_in": "5"}, "retry_in='5'"),
        ({"lease": 0}, "lease=0: must be 0.1 to 604800 seconds"),
        ({"wait": -1}, "wait=-1"),
    ],
)
def test_invalid_options_raise_a_clear_error_at_once(dead: RedisQueue, options: Any, error: str) -> None:
    def handle(message: Message) -> None:
        raise AssertionError

    with pytest.raises(InvalidValueError, match=error.replace("{", r"\{")):
        serialized(dead, **{"key": "x", **options})(handle)


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        ("{message.colour}", InvalidValueError, "AttributeError: 'str' object has no attribute 'colour'"),
        ("{message}", InvalidNameError, "lock name=''"),
        (lambda _: None, InvalidNameError, "lock name=None"),
        (lambda _: "x" * 201, InvalidNameError, "must be 1 to 200 printable characters"),
    ],
)
def test_arguments_without_a_valid_key_raise_before_any_call(
    dead: RedisQueue, key: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        serialized(dead, key=key)(do_nothing)("")


def test_a_function_that_returns_an_invalid_delay_raises(queue: RedisQueue) -> None:
    handle = serialized(queue, key="all", retry_in=lambda _: -5)(do_nothing)
    held = []
    thread = threading.Thread(target=lambda: held.append(Lock("all", queue.client).acquire()))
    thread.start()
    thread.join()
    with pytest.raises(InvalidDelayError, match="retry_in=-5"):
        handle("x")
    held[0].release()
