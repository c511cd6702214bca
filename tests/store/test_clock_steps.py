"""The clock of the Redis host jumps by an hour: entries come early or late by that much, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue
from redis_queue.delay.model import Push
from tests.support.faketime import ClockServer
from tests.support.wait import must, wait_until

HOUR = 3600
LEASE = 600


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClockServer]:
    """A server with a settable clock."""
    with ClockServer(tmp_path_factory.mktemp("clock")) as server:
        yield server


@pytest.fixture
def client(server: ClockServer) -> Iterator[redis.Redis]:
    """A client of the server, whose clock is correct."""
    server.set_clock(0)
    with server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def queue(client: redis.Redis) -> RedisQueue:
    """A queue with two messages in flight, one ready, one delayed by half an hour and one by three hours."""
    queue = RedisQueue("orders", client, lease=LEASE, put_back_on_get=0)
    queue.put_many(["held", "late", "ready"])
    queue.put("soon", delay=HOUR / 2)
    queue.put("far", delay=3 * HOUR)
    return queue


@pytest.fixture
def timed(client: redis.Redis) -> DelayQueue:
    """A delay queue with entries like the messages of `queue`."""
    timed = DelayQueue("orders", client, lease=LEASE)
    delays = {"held": 0.0, "late": 0.0, "soon": HOUR / 2, "far": 3.0 * HOUR}
    timed.push_many([Push(name, id=name, delay=delay) for name, delay in delays.items()])
    return timed


class TestForward:
    def test_leases_of_messages_end_early_and_late_acks_are_refused(
        self, server: ClockServer, queue: RedisQueue
    ) -> None:
        held, late = queue.get_many(2)
        server.set_clock(HOUR)
        assert queue.ack(late), "it was not put back yet"
        assert queue.put_back().returned == 1
        assert not queue.still_mine(held)
        assert not queue.ack(held)
        assert not queue.nack(held)
        assert not queue.extend(held)
        found = queue.get_many(10)
        assert [(message.body, message.deliveries) for message in found] == [("held", 2), ("ready", 1)]
        assert queue.ack_many(found) == [True, True]

    def test_messages_come_early_by_at_most_the_step(self, server: ClockServer, queue: RedisQueue) -> None:
        queue.get_many(3)
        server.set_clock(HOUR)
        assert [message.body for message in queue.get_many(10)] == ["soon"]
        stats = queue.stats()
        assert (stats.ready, stats.delayed, stats.in_flight) == (0, 1, 4)
        server.set_clock(4 * HOUR)
        assert [message.body for message in queue.get_many(10)] == ["far"]

    def test_a_blocked_get_notices_the_step(self, server: ClockServer, client: redis.Redis) -> None:
        queue = RedisQueue("orders", client, poll_interval=0.1)
        queue.put("soon", delay=HOUR / 2)
        with ThreadPoolExecutor() as pool:
            future = pool.submit(queue.get, timeout=20)
            wait_until(lambda: client.info("clients")["blocked_clients"], description="a blocked get")
            server.set_clock(HOUR)
            message = future.result(10)
        assert message is not None
        assert message.body == "soon"

    def test_leases_of_entries_end_early_and_late_acks_are_refused(
        self, server: ClockServer, timed: DelayQueue
    ) -> None:
        held, late = sorted(timed.claim(2), key=lambda entry: entry.id)
        server.set_clock(HOUR)
        assert timed.ack(late), "it was not put back yet"
        assert timed.put_back().returned == 1
        assert not timed.ack(held)
        assert not timed.nack(held)
        found = timed.claim(10)
        assert sorted((entry.id, entry.deliveries) for entry in found) == [("held", 2), ("soon", 1)]
        assert timed.ack_many(found) == [True, True]
        assert [entry.id for entry in timed] == ["far"]

    def test_entries_move_once_and_early_by_at_most_the_step(self, server: ClockServer, client: redis.Redis) -> None:
        timed = DelayQueue("orders", client)
        timed.push_many([Push(b"%d" % hours, delay=hours * HOUR, destination="target") for hours in (0, 1, 2)])
        assert timed.move_due() == 1
        server.set_clock(HOUR + 1)
        assert timed.move_due() == 1
        server.set_clock(0)
        assert timed.move_due() == 0
        server.set_clock(2 * HOUR + 1)
        assert timed.move_due() == 1
        assert client.lrange("target", 0, -1) == [b"2", b"1", b"0"]


class TestBackward:
    def test_leases_of_messages_do_not_end_early(self, server: ClockServer, queue: RedisQueue) -> None:
        held, late = queue.get_many(2)
        server.set_clock(-HOUR)
        assert queue.put_back().returned == 0
        assert queue.still_mine(held)
        assert queue.extend(held)
        assert queue.ack_many([held, late]) == [True, True]
        server.set_clock(0)
        assert queue.put_back().returned == 0
        assert [message.body for message in queue.get_many(10)] == ["ready"]

    def test_a_lease_is_never_shortened_by_an_extend(self, server: ClockServer, queue: RedisQueue) -> None:
        held = must(queue.get(block=False))
        server.set_clock(-HOUR)
        assert queue.extend(held)
        server.set_clock(0)
        assert queue.put_back().returned == 0
        assert queue.ack(held)

    def test_claims_during_the_step_are_put_back_after_the_correction(
        self, server: ClockServer, queue: RedisQueue
    ) -> None:
        server.set_clock(-HOUR)
        held = must(queue.get(block=False))
        assert queue.put_back().returned == 0
        server.set_clock(0)
        assert queue.put_back().returned == 1
        assert not queue.ack(held)
        assert [message.body for message in queue.get_many(10)] == ["held", "late", "ready"]

    def test_messages_come_late_and_once(self, server: ClockServer, client: redis.Redis) -> None:
        queue = RedisQueue("orders", client, poll_interval=0.1)
        queue.put("before", delay=0.001)
        server.set_clock(-HOUR)
        assert queue.get(block=False) is None
        queue.put("meanwhile", delay=0.001)
        message = must(queue.get(timeout=10))
        assert message.body == "meanwhile"
        assert queue.ack(message)
        assert queue.get(block=False) is None
        server.set_clock(0)
        assert [message.body for message in queue.get_many(10)] == ["before"]
        assert queue.get(block=False) is None

    def test_entries_come_late_and_once(self, server: ClockServer, timed: DelayQueue) -> None:
        held, late = timed.claim(2)
        server.set_clock(-HOUR)
        assert timed.put_back().returned == 0
        assert timed.claim(10) == []
        timed.push("meanwhile", id="meanwhile")
        assert [entry.id for entry in timed.pop(10)] == ["meanwhile"]
        assert timed.ack_many([held, late]) == [True, True]
        server.set_clock(HOUR)
        assert [entry.id for entry in timed.pop(10)] == ["soon"]
        assert [entry.id for entry in timed] == ["far"]
