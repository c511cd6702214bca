"""max_runtime: the messages of a hung handler are released, and no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import redis

from redis_queue import Consumer, Lease, Message, PutBack, RedisQueue
from redis_queue.basics.times import from_ms
from redis_queue.queue.heartbeat import Heartbeat
from redis_queue.store.records import LeasedItem
from tests.support.clock import START, Clock
from tests.support.wait import wait_until

LEASE = 30.0
MAX_RUNTIME = 60.0


class Time:
    """The clock of the server and of this process, with a heartbeat every third of the lease."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.consumer: Consumer | None = None
        self.beating = True

    def monotonic(self) -> float:
        return self.clock() / 1000

    def work(self, seconds: float) -> None:
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
    monkeypatch.setattr("redis_queue.queue.heartbeat.monotonic", time.monotonic)
    return time


@pytest.fixture
def queue(client: redis.Redis, clock: Clock) -> RedisQueue:
    return RedisQueue("work", client, lease=LEASE, max_deliveries=3, clock=clock)


def run_batch(queue: RedisQueue, time: Time, handler: Callable[[Message], object]) -> Consumer:
    consumer = time.consumer = Consumer(queue, handler, batch=20, max_runtime=MAX_RUNTIME)
    consumer._handle(consumer._claim())
    return consumer


def test_it_starts_with_each_handler(queue: RedisQueue, time: Time) -> None:
    def handle(message: Message) -> None:
        time.work(40)
        assert queue.put_back() == PutBack()
        seen.append(message.body)

    seen: list[int] = []
    queue.put_many(range(10))
    run_batch(queue, time, handle)

    assert seen == list(range(10))
    # Another thread may be acking those that waited for 5 ms.
    wait_until(lambda: queue.stats().acked == 10, description="the acks")


def test_a_hung_handler_also_releases_the_rest_of_its_batch(queue: RedisQueue, time: Time) -> None:
    def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == 1:
            wait_until(lambda: queue.stats().acked == 1, description="the first one to be acked")
            time.work(MAX_RUNTIME + 2 * LEASE)
            backs.append(queue.put_back())

    seen: list[int] = []
    backs: list[PutBack] = []
    queue.put_many(range(4))
    run_batch(queue, time, handle)

    assert backs == [PutBack(returned=3)]
    assert seen == [0, 1], "messages with a lost lease are not handled"
    assert queue.stats().acked == 1


def test_messages_not_put_back_are_handled_after_a_slow_handler(queue: RedisQueue, time: Time) -> None:
    def handle(message: Message) -> None:
        seen.append(message.body)
        time.work(MAX_RUNTIME + 2 * LEASE if message.body == 0 else 1)

    seen: list[int] = []
    queue.put_many(range(4))
    run_batch(queue, time, handle)

    assert seen == [0, 1, 2, 3]
    wait_until(lambda: queue.stats().acked == 4, description="the acks")


def test_the_heartbeat_forgets_a_lost_batch(queue: RedisQueue, time: Time) -> None:
    def handle(message: Message) -> None:
        queue.destroy()
        time.work(LEASE)

    queue.put_many(range(5))
    consumer = run_batch(queue, time, handle)

    assert not consumer._heartbeat._lost
    assert not consumer._heartbeat._held


def test_a_consumer_whose_machine_slept_begins_no_message_of_another(
    queue: RedisQueue, sleep: Callable[[float], None]
) -> None:
    def handle(message: Message) -> None:
        seen.append(message.body)
        sleep(90)
        assert other.put_back() == PutBack(2)
        taken.extend(other.get_many(10))

    seen: list[int] = []
    taken: list[Message] = []
    other = RedisQueue("work", queue.client, clock=Clock(START + 90_000))
    queue.put_many(range(2))
    consumer = Consumer(queue, handle, batch=20)
    consumer._handle(consumer._claim())

    assert seen == [0]
    assert [message.body for message in taken] == [0, 1]


class Leases:
    """A stand-in for `Records` that records extensions."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def extend(self, held: Sequence[LeasedItem], lease_ms: int) -> list[bool]:
        self.asked.append([item.id for item in held])
        return [True] * len(held)


def test_the_heartbeat_stops_only_for_messages_held_too_long(time: Time) -> None:
    def message(id_: str) -> Message:
        return Message(id_, None, {}, from_ms(0), 1, Lease(id_, from_ms(0)))

    leases = Leases()
    heartbeat = Heartbeat(leases.extend, 1000, max_runtime=MAX_RUNTIME)
    heartbeat.add(message("old"))
    time.clock.forward(40)
    heartbeat.add(message("new"))
    heartbeat.beat()
    time.clock.forward(40)
    heartbeat.beat()

    assert leases.asked == [["old", "new"], ["new"]]
