"""max_runtime: a handler that hangs gives its messages up, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import redis

from redis_queue import Consumer, Lease, Message, PutBack, RedisQueue
from redis_queue.queue.heartbeat import Heartbeat
from redis_queue.store.records import Leased
from redis_queue.times import from_ms
from tests.support.clock import Clock

LEASE = 30.0
LONGEST = 60.0


class Time:
    """The time of the server and of this process, moved together, with a beat each third of the lease."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.consumer: Consumer | None = None
        self.beating = True

    def monotonic(self) -> float:
        return self.clock() / 1000

    def work(self, seconds: float) -> None:
        """Let time pass in a handler."""
        assert self.consumer is not None
        left = seconds
        while left > 0:
            self.clock.forward(min(left, LEASE / 3))
            left -= LEASE / 3
            if self.beating:
                self.consumer._heartbeat.beat()


@pytest.fixture
def time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time(clock)
    monkeypatch.setattr("redis_queue.queue.heartbeat.time", SimpleNamespace(monotonic=time.monotonic))
    return time


@pytest.fixture
def queue(client: redis.Redis, clock: Clock) -> RedisQueue:
    return RedisQueue("work", client, visibility_timeout=LEASE, max_deliveries=3, clock=clock)


def run_batch(queue: RedisQueue, time: Time, handler: Callable[[Message], object]) -> Consumer:
    """Claim one batch and work it off."""
    consumer = time.consumer = Consumer(queue, handler, batch=20, max_runtime=LONGEST)
    consumer._handle(consumer._claim())
    return consumer


def test_it_counts_from_the_start_of_each_handler_not_from_the_claim(queue: RedisQueue, time: Time) -> None:
    def handle(message: Message) -> None:
        time.work(40)
        assert queue.put_back() == PutBack()
        seen.append(message.body)

    seen: list[int] = []
    queue.put_many(range(10))
    run_batch(queue, time, handle)

    assert seen == list(range(10))
    assert queue.stats().acked == 10


def test_a_hung_handler_gives_up_what_waits_behind_it_too(queue: RedisQueue, time: Time) -> None:
    def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == 1:
            time.work(LONGEST + 2 * LEASE)
            backs.append(queue.put_back())

    seen: list[int] = []
    backs: list[PutBack] = []
    queue.put_many(range(4))
    run_batch(queue, time, handle)

    assert backs == [PutBack(returned=4)]
    assert seen == [0, 1], "what was given to others meanwhile is not begun"
    assert queue.stats().acked == 0


def test_what_nobody_took_meanwhile_is_worked_off_after_a_slow_handler(queue: RedisQueue, time: Time) -> None:
    def handle(message: Message) -> None:
        seen.append(message.body)
        time.work(LONGEST + 2 * LEASE if message.body == 0 else 1)

    seen: list[int] = []
    queue.put_many(range(4))
    run_batch(queue, time, handle)

    assert seen == [0, 1, 2, 3]
    assert queue.stats().acked == 4


def test_nothing_is_remembered_of_a_batch_that_was_lost(queue: RedisQueue, time: Time) -> None:
    def handle(message: Message) -> None:
        queue.destroy()
        time.work(LEASE)

    queue.put_many(range(5))
    consumer = run_batch(queue, time, handle)

    assert not consumer._heartbeat._lost
    assert not consumer._heartbeat._held


class Leases:
    """Notes whose leases are to be lengthened."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def extend(self, held: Sequence[Leased], lease_ms: int) -> list[bool]:
        self.asked.append([item.id for item in held])
        return [True] * len(held)


def test_a_heartbeat_stops_for_what_was_held_too_long_and_for_that_alone(time: Time) -> None:
    def message(id_: str) -> Message:
        return Message(id_, None, {}, from_ms(0), 1, Lease(id_, from_ms(0)))

    leases = Leases()
    heartbeat = Heartbeat(leases, 1000, max_runtime=LONGEST)
    heartbeat.add(message("old"))
    time.clock.forward(40)
    heartbeat.add(message("new"))
    heartbeat.beat()
    time.clock.forward(40)
    heartbeat.beat()

    assert leases.asked == [["old", "new"], ["new"]]
