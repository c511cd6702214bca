"""Slots that move to another node of a Redis Cluster while their queues are in use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue, StoreUnavailableError, UnsupportedServerError
from redis_queue.delay.model import Push
from redis_queue.store.keys import Keys
from tests.support.cluster import RedisCluster
from tests.support.wait import must, wait_until

pytestmark = pytest.mark.usefixtures("cluster_client")

QUEUE = Keys("redis_queue", "queue", "orders").meta.decode()
DELAY = Keys("redis_queue", "delay", "orders", 0).meta.decode()
COUNT = 300


@pytest.fixture
def client(cluster: RedisCluster) -> Iterator[redis.RedisCluster]:
    queue = RedisQueue("orders", cluster.url)
    assert isinstance(queue.client, redis.RedisCluster)
    with queue.client:
        yield queue.client


def work_while(move: Callable[[], Any], produce: Callable[[int], Any], consume: Callable[[], list[int]]) -> list[int]:
    """Produce and consume before, during and after *move*; return the consumed numbers."""
    moved = threading.Event()
    found: list[int] = []

    def producing() -> None:
        number = 0
        while number < COUNT or not moved.is_set():
            produce(number)
            number += 1
        produced.append(number)

    def consuming() -> None:
        while not produced or len(found) < produced[0]:
            found.extend(consume())

    produced: list[int] = []
    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(producing), pool.submit(consuming)]
        wait_until(lambda: len(found) > COUNT // 4, description="work in progress")
        move()
        moved.set()
        for future in futures:
            future.result(30)
    assert sorted(found) == sorted(range(produced[0]))
    return found


def test_a_queue_is_used_while_its_slot_moves(cluster: RedisCluster, client: redis.RedisCluster) -> None:
    queue = RedisQueue("orders", client)
    before = cluster.primary_of(QUEUE)

    def take() -> list[int]:
        message = queue.get(timeout=0.2)
        return [message.body] if message is not None and queue.ack(message) else []

    work_while(lambda: cluster.move_slot_of(QUEUE), queue.put, take)
    assert cluster.primary_of(QUEUE) is not before
    stats = queue.stats()
    assert (stats.acked, stats.ready, stats.in_flight, stats.redelivered) == (stats.put, 0, 0, 0)


def test_entries_are_claimed_once_while_their_slot_moves(cluster: RedisCluster, client: redis.RedisCluster) -> None:
    timed = DelayQueue("orders", client)
    before = cluster.primary_of(DELAY)

    def take() -> list[int]:
        return [entry.payload for entry in timed.pop(5)]

    work_while(lambda: cluster.move_slot_of(DELAY), lambda number: timed.push(number, id=str(number)), take)
    assert cluster.primary_of(DELAY) is not before
    assert (len(timed), timed.stats().in_flight) == (0, 0)


def test_calls_in_the_middle_of_the_move_raise_and_change_nothing(
    cluster: RedisCluster, client: redis.RedisCluster
) -> None:
    queue = RedisQueue("orders", client)
    queue.put_many(["held", "ready"])
    held = must(queue.get(block=False))
    refused = []

    def half_way() -> None:
        for call in (lambda: queue.ack(held), lambda: queue.get(block=False)):
            with pytest.raises(StoreUnavailableError):
                call()
            refused.append(call)

    cluster.move_slot_of(QUEUE, half_way)
    assert len(refused) == 2
    assert queue.still_mine(held)
    assert queue.ack(held)
    assert [message.body for message in queue.get_many(5)] == ["ready"]


def test_a_plain_client_raises_an_error_that_names_the_cluster_url(cluster: RedisCluster) -> None:
    other = next(server for server in cluster.servers if server is not cluster.primary_of(QUEUE))
    with other.client() as plain:
        for call in (
            lambda: RedisQueue("orders", plain).get(block=False),
            lambda: DelayQueue("orders", plain, shards=16).push_many([Push(number) for number in range(50)]),
        ):
            with pytest.raises(UnsupportedServerError, match=r"redis\+cluster://"):
                call()
