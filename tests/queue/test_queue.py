"""Every public method of a RedisQueue."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis

from redis_queue import LeaseLostError, Message, PutBack, QueueFullError, RedisQueue, Settings, StoreUnavailableError
from redis_queue.store.keys import Keys
from redis_queue.store.links import DirectLink
from redis_queue.store.script_files import load
from tests.support.clock import START, Clock
from tests.support.recording import record_reads
from tests.support.wait import must, wait_until

KEYS = Keys("redis_queue", "queue", "orders")


def when(milliseconds: int) -> datetime:
    """Return the time that many milliseconds after the start of the clock."""
    return datetime.fromtimestamp((START + milliseconds) / 1000, timezone.utc)


@pytest.fixture
def make(client: redis.Redis, clock: Clock) -> Callable[..., RedisQueue]:
    """Make a queue with the given settings, on the manual clock."""
    return lambda **settings: RedisQueue("orders", client, clock=clock, **settings)


@pytest.fixture
def queue(make: Callable[..., RedisQueue]) -> RedisQueue:
    return make()


@pytest.fixture
def live(client: redis.Redis) -> RedisQueue:
    """A queue on the server's clock that polls only every 30 seconds."""
    return RedisQueue("orders", client, poll_interval=30)


def bodies(messages: list[Message]) -> list[Any]:
    """Return the bodies of *messages*."""
    return [message.body for message in messages]


class TestPutAndGet:
    def test_messages_keep_their_order(self, queue: RedisQueue) -> None:
        for number in range(5):
            queue.put(number)
        queue.put_many(range(5, 10))
        found = [must(queue.get()) for _ in range(3)] + queue.get_many(4) + queue.get_many(100)
        assert bodies(found) == list(range(10))

    def test_a_message_has_all_its_attributes(self, queue: RedisQueue, clock: Clock) -> None:
        id_ = queue.put({"order": 1}, headers={"trace": "abc"})
        clock.forward(1.5)
        message = must(queue.get())
        assert (message.id, message.body, message.headers) == (id_, {"order": 1}, {"trace": "abc"})
        assert (message.put_at, message.deliveries) == (when(0), 1)
        assert message.lease is not None
        assert message.lease.expires_at == when(61_500)

    def test_equal_bodies_are_two_messages(self, queue: RedisQueue) -> None:
        first, second = queue.put({"order": 1}), queue.put({"order": 1})
        assert first != second
        assert len(queue) == 2

    @pytest.mark.parametrize("hours", [-1, 0, 1])
    def test_the_time_is_that_of_the_server(
        self, client: redis.Redis, live: RedisQueue, monkeypatch: pytest.MonkeyPatch, hours: int
    ) -> None:
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 3600 * hours)
        monkeypatch.setattr(time, "time_ns", lambda: round((now + 3600 * hours) * 1e9))
        seconds, micros = client.time()
        live.put("now")
        message = must(live.get())
        before = datetime.fromtimestamp(seconds, timezone.utc) + timedelta(microseconds=micros - 1000)
        assert before <= message.put_at < before + timedelta(seconds=5)
        assert message.lease is not None
        assert timedelta(seconds=59) < message.lease.expires_at - message.put_at < timedelta(seconds=66)

    def test_ids_are_unique_and_sorted(self, queue: RedisQueue) -> None:
        ids = queue.put_many(range(700))
        assert len(set(ids)) == 700
        assert ids[:500] == sorted(ids[:500])

    def test_thousands_of_bodies_may_come_from_a_generator(self, queue: RedisQueue) -> None:
        ids = queue.put_many({"n": number} for number in range(1201))
        found = [message for _ in range(3) for message in queue.get_many(500)]
        assert [message.id for message in found] == ids
        assert [message.body["n"] for message in found] == list(range(1201))

    def test_empty_lists_are_accepted(self, queue: RedisQueue) -> None:
        assert queue.put_many([]) == []
        assert queue.ack_many([]) == []
        assert queue.nack_many([]) == []

    def test_a_get_without_blocking_returns_none(self, queue: RedisQueue) -> None:
        assert queue.get(block=False) is None
        assert queue.get(timeout=0) is None
        assert queue.get_many(5) == []

    def test_a_get_waits_until_its_timeout(self, live: RedisQueue) -> None:
        begin = time.monotonic()
        assert live.get(timeout=0.3) is None
        assert 0.3 <= time.monotonic() - begin < 1.5

    def test_bytes_stay_bytes(self, queue: RedisQueue) -> None:
        queue.put_many([b"\x00\xff", bytearray(b"ab"), memoryview(b"cd")])
        assert bodies(queue.get_many(5)) == [b"\x00\xff", b"ab", b"cd"]

    def test_a_client_with_decode_responses_works(self, redis_url: str, client: redis.Redis) -> None:
        with redis.Redis.from_url(redis_url, decode_responses=True) as decoding:
            queue = RedisQueue("orders", decoding)
            queue.put(b"\xff")
            message = must(queue.get())
            assert message.body == b"\xff"
            assert queue.ack(message)

    def test_a_message_is_in_flight_until_its_ack(self, queue: RedisQueue) -> None:
        queue.put("order")
        message = must(queue.get())
        assert queue.get(block=False) is None
        assert queue.stats().in_flight == 1
        assert queue.ack(message)
        assert (queue.stats().in_flight, queue.stats().acked) == (0, 1)

    def test_more_than_five_hundred_may_be_settled_at_once(self, queue: RedisQueue) -> None:
        queue.put_many(range(1200))
        messages = [message for _ in range(3) for message in queue.get_many(500)]
        assert queue.extend_many(messages) == [True] * 1200
        assert queue.nack_many(messages[:600]) == [True] * 600
        assert queue.ack_many(messages) == [False] * 600 + [True] * 600


class TestSerializer:
    class Shout:
        name = "shout"

        def dumps(self, body: Any, /) -> bytes:
            return str(body).upper().encode()

        def loads(self, data: bytes, /) -> Any:
            """Return the text with an exclamation mark."""
            return data.decode() + "!"

    def test_another_serializer_writes_and_reads(self, make: Callable[..., RedisQueue], client: redis.Redis) -> None:
        queue = make(serializer=self.Shout())
        queue.put("hello")
        queue.put(b"hello")
        assert client.hvals(KEYS.records)[0] == b"v1 %d shout 0 5\nHELLO" % START
        assert bodies(queue.get_many(2)) == ["HELLO!", b"hello"]

    def test_it_reads_earlier_json_but_json_cannot_read_it(self, make: Callable[..., RedisQueue]) -> None:
        make().put({"a": 1})
        loud = make(serializer=self.Shout())
        loud.put("hello")
        assert bodies(loud.get_many(2)) == [{"a": 1}, "HELLO!"]
        loud.put("again")
        assert make().get(block=False) is None
        assert [found.reason for found in make().quarantined()] == ["written by serializer 'shout'"]


class TestNack:
    def test_it_is_redelivered_first(self, queue: RedisQueue) -> None:
        queue.put_many(["a", "b", "c"])
        message = must(queue.get())
        assert queue.nack(message)
        again = must(queue.get())
        assert (again.body, again.deliveries) == ("a", 2)
        assert not queue.ack(message)

    def test_a_batch_is_redelivered_in_order(self, queue: RedisQueue) -> None:
        queue.put_many(list("abcd"))
        assert queue.nack_many(queue.get_many(3)) == [True] * 3
        assert bodies(queue.get_many(4)) == list("abcd")

    def test_an_ack_deletes_it_and_its_reason(self, queue: RedisQueue, client: redis.Redis) -> None:
        queue.put("a")
        queue.nack(must(queue.get()), reason="busy")
        assert client.hvals(KEYS.errors) == [b"busy"]
        assert queue.ack(must(queue.get()))
        assert not client.exists(KEYS.errors, KEYS.records, KEYS.leases, KEYS.in_flight, KEYS.ready)


class TestPutBack:
    def test_it_returns_expired_messages_first_and_in_order(self, queue: RedisQueue, clock: Clock) -> None:
        queue.put_many(list("abcde"))
        queue.get_many(2)
        clock.forward(1)
        queue.get_many(1)
        clock.forward(60)
        assert queue.put_back() == PutBack(returned=3)
        assert bodies(queue.get_many(5)) == list("abcde")

    def test_a_get_puts_back_a_few(self, make: Callable[..., RedisQueue], clock: Clock) -> None:
        queue = make(put_back_on_get=2)
        queue.put_many(list("abc"))
        queue.get_many(3)
        clock.forward(60)
        assert must(queue.get(block=False)).body == "a"
        assert (queue.stats().ready, queue.stats().in_flight) == (1, 2)

    def test_a_get_may_put_back_none(self, make: Callable[..., RedisQueue], clock: Clock) -> None:
        queue = make(put_back_on_get=0)
        queue.put("a")
        queue.get()
        clock.forward(60)
        assert queue.get(block=False) is None
        assert queue.stats().in_flight == 1


class TestDelay:
    def test_it_is_not_delivered_before_its_time(self, queue: RedisQueue, clock: Clock) -> None:
        queue.put("late", delay=10)
        queue.put("soon", delay=timedelta(milliseconds=1))
        assert queue.get(block=False) is None
        assert (queue.stats().ready, queue.stats().delayed, len(queue)) == (0, 2, 2)
        clock.forward(0.001)
        assert must(queue.get(block=False)).body == "soon"
        clock.forward(9.998)
        assert queue.get(block=False) is None
        clock.forward(0.001)
        assert must(queue.get(block=False)).body == "late"

    def test_due_messages_are_appended_to_the_queue(self, queue: RedisQueue, clock: Clock) -> None:
        queue.put_many(["d2", "d2 too"], delay=2)
        queue.put("d1", delay=1)
        queue.put("ready")
        clock.forward(5)
        assert queue.promote() == 3
        assert queue.promote() == 0
        assert bodies(queue.get_many(9)) == ["ready", "d1", "d2", "d2 too"]

    def test_promote_moves_at_most_its_limit(self, queue: RedisQueue, clock: Clock) -> None:
        queue.put_many(range(1100), delay=1)
        clock.forward(1)
        assert queue.promote(3) == 3
        assert queue.promote() == 1097
        assert queue.stats().ready == 1100


class TestDedupe:
    def test_an_existing_key_is_not_added_again(self, queue: RedisQueue, clock: Clock) -> None:
        assert queue.put("first", dedupe_key="k") == queue.put("second", dedupe_key="k") == "k"
        message = must(queue.get())
        assert message.body == "first"
        queue.put("while in flight", dedupe_key="k")
        queue.nack(message, delay=5)
        queue.put("while delayed", dedupe_key="k", delay=1)
        clock.forward(5)
        queue.nack(must(queue.get()), dead=True)
        queue.put("while dead", dedupe_key="k")
        assert queue.get(block=False) is None
        assert (queue.stats().put, queue.stats().dead) == (1, 1)

    def test_a_key_is_free_again_after_its_ack_or_purge(self, queue: RedisQueue) -> None:
        queue.put("first", dedupe_key="k")
        assert queue.ack(must(queue.get()))
        queue.put("second", dedupe_key="k")
        assert queue.purge() == 1
        queue.put("third", dedupe_key="k")
        message = must(queue.get())
        assert (message.body, message.deliveries) == ("third", 1)

    def test_put_many_takes_a_function_for_keys(self, queue: RedisQueue) -> None:
        ids = queue.put_many(["a1", "b1", "a2", "c1"], dedupe_key=lambda body: body[0])
        assert ids == ["a", "b", "a", "c"]
        assert bodies(queue.get_many(9)) == ["a1", "b1", "c1"]


class TestMaxLength:
    def test_a_full_queue_refuses_puts(self, make: Callable[..., RedisQueue]) -> None:
        queue = make(max_length=2)
        queue.put("a")
        queue.put("b", delay=5)
        with pytest.raises(QueueFullError, match="orders: would hold more than max_length=2 ready"):
            queue.put("c")
        assert len(queue) == 2
        message = must(queue.get())
        queue.put("d")
        with pytest.raises(QueueFullError):
            queue.put("e")
        assert queue.nack(message), "a nack is never refused"
        assert len(queue) == 3

    def test_many_are_stored_all_or_none(self, make: Callable[..., RedisQueue]) -> None:
        queue = make(max_length=5)
        queue.put_many(list("abc"))
        with pytest.raises(QueueFullError):
            queue.put_many(list("def"))
        assert len(queue) == 3
        queue.put_many(list("de"))
        assert bodies(queue.get_many(9)) == list("abcde")

    def test_an_existing_key_is_accepted_by_a_full_queue(self, make: Callable[..., RedisQueue]) -> None:
        queue = make(max_length=1)
        queue.put("a", dedupe_key="k")
        assert queue.put("a", dedupe_key="k") == "k"

    def test_each_object_has_its_own_limit(self, make: Callable[..., RedisQueue]) -> None:
        make(max_length=1).put("a")
        make().put("b")
        with pytest.raises(QueueFullError):
            make(max_length=2).put("c")


class TestDeadLetters:
    def test_a_rate_spreads_them_over_time(self, queue: RedisQueue, clock: Clock, client: redis.Redis) -> None:
        queue.put_many(range(10))
        queue.nack_many(queue.get_many(10), dead=True)
        assert queue.redrive(rate=4) == 10
        assert bodies(queue.get_many(5)) == [0]
        due = [score - clock.now for _, score in client.zrange(KEYS.waiting, 0, -1, withscores=True)]
        assert due == [250, 500, 750, 1000, 1250, 1500, 1750, 2000, 2250]
        clock.forward(1)
        assert bodies(queue.get_many(20)) == [1, 2, 3, 4]


class TestPurge:
    @pytest.fixture
    def full(self, queue: RedisQueue) -> Message:
        """A message in flight, in a queue with messages in every state."""
        queue.put_many(["dead", "held", "ready", "ready"])
        queue.put_many(["delayed"] * 3, delay=9)
        dead, held = queue.get_many(2)
        queue.nack(dead, dead=True)
        return held

    def test_by_default_it_deletes_ready_and_delayed_messages(self, queue: RedisQueue, full: Message) -> None:
        assert queue.purge() == 5
        stats = queue.stats()
        assert (stats.ready, stats.delayed, stats.in_flight, stats.dead) == (0, 0, 1, 1)
        assert queue.ack(full)

    @pytest.mark.parametrize(
        ("place", "gone", "left"), [("ready", 2, (0, 3, 1)), ("delayed", 3, (2, 0, 1)), ("dead", 1, (2, 3, 0))]
    )
    @pytest.mark.usefixtures("full")
    def test_it_deletes_only_the_given_state(
        self, queue: RedisQueue, place: Any, gone: int, left: tuple[int, ...]
    ) -> None:
        assert queue.purge(place) == gone
        assert queue.purge(place) == 0
        stats = queue.stats()
        assert (stats.ready, stats.delayed, stats.dead) == left
        assert queue.purge("ready", "delayed", "dead") == sum(left)

    def test_it_deletes_the_oldest_ready_messages_first(self, queue: RedisQueue) -> None:
        queue.put_many(range(700))
        assert queue.purge("ready", limit=600) == 600
        assert bodies(queue.get_many(500)) == list(range(600, 700))


class TestPause:
    def test_a_paused_queue_refuses_claims_but_accepts_puts_and_acks(
        self, queue: RedisQueue, make: Callable[..., RedisQueue]
    ) -> None:
        queue.put("held")
        message = must(queue.get())
        queue.pause()
        queue.put("waiting")
        assert queue.stats().paused
        assert queue.get(block=False) is None
        assert make().get(timeout=0.05) is None
        assert queue.ack(message)
        queue.resume()
        assert not queue.stats().paused
        assert must(queue.get(block=False)).body == "waiting"

    def test_resume_wakes_blocked_gets(self, client: redis.Redis, live: RedisQueue, pool: ThreadPoolExecutor) -> None:
        live.pause()
        live.put("hello")
        future = pool.submit(live.get, timeout=20)
        wait_until(lambda: blocked(client) == 1, description="a blocked get")
        live.resume()
        assert must(future.result(5)).body == "hello"


class TestLooking:
    def test_peek_claims_nothing(self, queue: RedisQueue) -> None:
        queue.put_many(list("abc"), headers={"h": 1})
        queue.nack(must(queue.get()))
        assert [(message.body, message.deliveries, message.lease) for message in queue.peek(2)] == [
            ("a", 1, None),
            ("b", 0, None),
        ]
        assert bodies(queue.peek()) == ["a"]
        assert queue.stats().ready == 3

    def test_stats_count_everything(self, make: Callable[..., RedisQueue], clock: Clock) -> None:
        queue = make(max_deliveries=2)
        assert queue.stats().oldest_ready_at is None
        queue.put_many(range(6))
        clock.forward(5)
        queue.put("delayed", delay=5)
        first, second, third, fourth = queue.get_many(4)
        queue.ack(first)
        queue.nack(second)
        queue.nack(third, dead=True)
        stats = queue.stats()
        assert (stats.ready, stats.delayed, stats.in_flight, stats.dead, stats.quarantined) == (3, 1, 1, 1, 0)
        assert (stats.put, stats.acked, stats.redelivered, stats.paused) == (7, 1, 1, False)
        assert stats.oldest_ready_at == when(0)
        assert len(queue) == 4
        assert queue.still_mine(fourth)

    def test_an_empty_queue_is_true(self, queue: RedisQueue) -> None:
        assert len(queue) == 0
        assert queue
        assert repr(queue) == "RedisQueue('orders', prefix='redis_queue')"

    def test_settings_may_be_an_object(self, client: redis.Redis) -> None:
        settings = Settings(prefix="shop", lease=timedelta(minutes=5), max_length=1)
        queue = RedisQueue("orders", client, settings=settings)
        queue.put("a")
        assert client.exists(Keys("shop", "queue", "orders").records)
        with pytest.raises(QueueFullError):
            queue.put("b")


def blocked(client: redis.Redis) -> int:
    return int(client.info("clients")["blocked_clients"])


class TestWakeUp:
    """A blocked get wakes up at once, although it polls only every 30 seconds."""

    def lateness(
        self, client: redis.Redis, pool: ThreadPoolExecutor, queue: RedisQueue, act: Callable[[], Any]
    ) -> float:
        """Return the seconds from *act* until a blocked get has its message; ack the message."""
        future: Future[Message | None] = pool.submit(queue.get, timeout=20)
        wait_until(lambda: blocked(client) == 1, description="a blocked get")
        begin = time.monotonic()
        act()
        message = must(future.result(25))
        seconds = time.monotonic() - begin
        assert queue.ack(message)
        return seconds

    def test_a_put_wakes_it(self, client: redis.Redis, live: RedisQueue, pool: ThreadPoolExecutor) -> None:
        producer = RedisQueue("orders", client)
        times = [self.lateness(client, pool, live, lambda: producer.put("x")) for _ in range(9)]
        assert statistics.median(times) < 0.1

    def test_a_nack_wakes_it(self, client: redis.Redis, live: RedisQueue, pool: ThreadPoolExecutor) -> None:
        live.put("x")
        message = must(live.get())
        assert self.lateness(client, pool, live, lambda: live.nack(message)) < 1

    def test_a_put_back_wakes_it(self, client: redis.Redis, live: RedisQueue, pool: ThreadPoolExecutor) -> None:
        holder = RedisQueue("orders", client, put_back_on_get=0)
        holder.put("x")
        message = must(holder.get())
        waiter = RedisQueue("orders", client, poll_interval=30, put_back_on_get=0)

        def put_back() -> None:
            client.zadd(KEYS.in_flight, {message.id: 0})
            assert holder.put_back().returned == 1

        assert self.lateness(client, pool, waiter, put_back) < 1

    def test_a_redrive_wakes_it(self, client: redis.Redis, live: RedisQueue, pool: ThreadPoolExecutor) -> None:
        live.put("x")
        live.nack(must(live.get()), dead=True)
        assert self.lateness(client, pool, live, live.redrive) < 1

    def test_a_delayed_message_arrives_in_time(
        self, client: redis.Redis, live: RedisQueue, pool: ThreadPoolExecutor
    ) -> None:
        times = [self.lateness(client, pool, live, lambda: live.put("x", delay=0.2)) for _ in range(3)]
        assert min(times) >= 0.2
        assert statistics.median(times) < 0.5

    def test_a_later_message_does_not_delay_a_sooner_one(
        self, client: redis.Redis, live: RedisQueue, pool: ThreadPoolExecutor
    ) -> None:
        live.put("later", delay=15)
        assert self.lateness(client, pool, live, lambda: live.put("sooner", delay=0.1)) < 1.5

    def test_the_end_of_another_lease_wakes_it(
        self, client: redis.Redis, live: RedisQueue, pool: ThreadPoolExecutor
    ) -> None:
        short = RedisQueue("orders", client, lease=0.3)
        short.put("x")
        held = must(short.get())
        message = must(live.get(timeout=10))
        assert (message.id, message.deliveries) == (held.id, 2)
        assert not short.ack(held)

    def test_each_of_many_blocked_gets_receives_a_message(
        self, client: redis.Redis, redis_url: str, pool: ThreadPoolExecutor
    ) -> None:
        futures = [pool.submit(RedisQueue("orders", redis_url, poll_interval=30).get, timeout=20) for _ in range(5)]
        wait_until(lambda: blocked(client) == 5, description="five blocked gets")
        RedisQueue("orders", client).put_many(range(5))
        assert sorted(must(future.result(5)).body for future in futures) == list(range(5))

    def test_a_blocked_batch_takes_all_ready_messages(
        self, client: redis.Redis, live: RedisQueue, pool: ThreadPoolExecutor
    ) -> None:
        future = pool.submit(live.get_many, 10, block=True, timeout=20)
        wait_until(lambda: blocked(client) == 1, description="a blocked get")
        RedisQueue("orders", client).put_many(list("abc"))
        assert bodies(future.result(5)) == list("abc")


class TestLease:
    def test_the_block_ends_with_an_ack(self, queue: RedisQueue) -> None:
        queue.put("a")
        with queue.lease() as message:
            assert must(message).body == "a"
            assert queue.stats().in_flight == 1
        assert queue.stats().acked == 1

    def test_an_exception_releases_the_message(self, make: Callable[..., RedisQueue]) -> None:
        queue = make(max_deliveries=1)
        queue.put("a")
        with pytest.raises(LookupError, match="no such order"), queue.lease():
            raise LookupError("no such order")
        assert [letter.reason for letter in queue.dead_letters()] == ["LookupError: no such order"]

    def test_without_a_message_it_yields_none(self, queue: RedisQueue) -> None:
        with queue.lease(block=False) as message:
            assert message is None
        with queue.lease(timeout=0.01) as message:
            assert message is None

    def test_a_lost_lease_raises_at_the_end(self, client: redis.Redis, live: RedisQueue) -> None:
        live.put("a")

        def work() -> None:
            with live.lease() as message:
                client.zadd(KEYS.in_flight, {must(message).id: 0})
                assert live.put_back().returned == 1

        with pytest.raises(LeaseLostError, match="another consumer got the message"):
            work()
        assert (live.stats().acked, live.stats().ready) == (0, 1)

    def test_the_lease_is_extended_while_the_block_works(self, client: redis.Redis) -> None:
        others = threading.enumerate()
        queue = RedisQueue("orders", client, lease=0.3)
        queue.put("a")
        with queue.lease() as message:
            id_ = must(message).id
            ends = [client.zscore(KEYS.in_flight, id_)]
            for _ in range(5):
                ends.append(
                    wait_until(
                        lambda: (end := client.zscore(KEYS.in_flight, id_)) > ends[-1] and end,
                        description="an extension",
                    )
                )
            assert queue.put_back() == PutBack()
            assert ends[-1] - ends[0] > 300, "the lease must be extended past its length"
        assert queue.stats().acked == 1
        left = [thread for thread in threading.enumerate() if thread not in others]
        assert "redis-queue-heartbeat" not in {thread.name for thread in left}


class TestConsume:
    def test_each_message_is_acked_before_the_next(self, queue: RedisQueue) -> None:
        queue.put_many(list("abc"))
        acked = []
        for message in queue.consume(timeout=0.05):
            acked.append((message.body, queue.stats().acked, queue.stats().in_flight))
        assert acked == [("a", 0, 1), ("b", 1, 1), ("c", 2, 1)]
        assert queue.stats().acked == 3

    def test_leaving_the_loop_releases_the_message(self, queue: RedisQueue) -> None:
        queue.put_many(list("ab"))
        for message in queue.consume():
            assert message.body == "a"
            break
        again = must(queue.get())
        assert (again.body, again.deliveries) == ("a", 2)

    def test_an_exception_releases_the_message(self, queue: RedisQueue) -> None:
        queue.put_many(list("ab"))

        def work() -> None:
            for message in queue.consume():
                raise LookupError(message.body)

        with pytest.raises(LookupError):
            work()
        assert bodies(queue.get_many(5)) == ["a", "b"]
        assert queue.stats().acked == 0

    def test_it_ends_after_its_timeout(self, live: RedisQueue) -> None:
        begin = time.monotonic()
        assert list(live.consume(timeout=0.2)) == []
        assert 0.2 <= time.monotonic() - begin < 1.5

    def test_the_lease_is_extended_while_the_loop_works(self, client: redis.Redis) -> None:
        queue = RedisQueue("orders", client, lease=0.3)
        queue.put("a")
        for message in queue.consume(timeout=0.01):
            first = client.zscore(KEYS.in_flight, message.id)
            wait_until(
                lambda: client.zscore(KEYS.in_flight, message.id) > first + 300,  # noqa: B023
                description="an end later than one lease",
            )
        assert (queue.stats().acked, queue.stats().redelivered) == (1, 0)

    @pytest.mark.parametrize("fault", ["reply lost", "nothing sent", "scripts forgotten"])
    def test_a_fault_between_two_messages_loses_and_duplicates_none(
        self, queue: RedisQueue, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, fault: str
    ) -> None:
        queue.put_many(range(5))
        send, get, faults = DirectLink.send, load("queue/get"), []
        length = 3 + len(get.keys) + len(get.arguments) + 2

        def faulty(link: DirectLink, *command: Any) -> Any:
            if command[1] != get.sha or len(command) != length or command in faults:
                return send(link, *command)
            # The first attempt of each call that acks one message.
            faults.append(command)
            if fault == "scripts forgotten":
                client.script_flush()
            if fault == "nothing sent":
                raise redis.ConnectionError("closed")
            reply = send(link, *command)
            if fault == "reply lost":
                raise redis.TimeoutError("the reply is lost")
            return reply

        monkeypatch.setattr(DirectLink, "send", faulty)
        seen = []
        for message in queue.consume(timeout=0.01):
            seen.append((message.body, message.deliveries))
        assert seen == [(number, 1) for number in range(5)]
        assert len(faults) == 5
        stats = queue.stats()
        assert (stats.ready, stats.in_flight, stats.acked) == (0, 0, 5)

    @pytest.mark.parametrize("timeout", [None, 30])
    def test_the_loop_survives_an_outage(
        self, queue: RedisQueue, monkeypatch: pytest.MonkeyPatch, timeout: float | None
    ) -> None:
        queue.put_many(range(3))
        send, left = DirectLink.send, [8]

        def away(link: DirectLink, *command: Any) -> Any:
            if left[0]:
                left[0] -= 1
                raise redis.ConnectionError("away")
            return send(link, *command)

        seen = []
        loop = queue.consume(timeout=timeout)
        for message in loop:
            seen.append((message.body, message.deliveries))
            if message.body == 2:
                break
            if message.body == 0:
                monkeypatch.setattr(DirectLink, "send", away)
        loop.close()
        assert seen == [(0, 1), (1, 1), (2, 1)]
        assert (queue.stats().acked, queue.stats().ready) == (2, 1)

    def test_an_outage_longer_than_the_timeout_ends_it(
        self, queue: RedisQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(link: DirectLink, *_: Any) -> Any:
            raise redis.ConnectionError("away")

        queue.put_many(range(3))
        loop = queue.consume(timeout=0.1)
        assert next(loop).body == 0
        monkeypatch.setattr(DirectLink, "send", away)
        with pytest.raises(StoreUnavailableError):
            next(loop)

    def test_a_lost_lease_is_logged_and_the_loop_continues(
        self, queue: RedisQueue, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue.put_many(range(2))
        seen = []
        for message in queue.consume(timeout=0.01):
            seen.append(message.body)
            if len(seen) == 1:
                clock.now += 60_000
                assert queue.put_back().returned == 1
        assert seen == [0, 0, 1]
        assert [record.message for record in caplog.records] == ["the lease was lost"]


class TestThreads:
    def test_threads_may_share_one_queue_object(
        self, client: redis.Redis, live: RedisQueue, pool: ThreadPoolExecutor
    ) -> None:
        counter = itertools.count()
        taken: Counter[int] = Counter()

        def work(_: int) -> None:
            for _ in range(60):
                live.put(next(counter))
                message = must(live.get())
                taken[message.body] += 1
                assert live.ack(message)

        for future in [pool.submit(work, number) for number in range(8)]:
            future.result(30)
        assert taken == Counter(range(480))
        stats = live.stats()
        assert (stats.put, stats.acked, stats.ready, stats.in_flight) == (480, 480, 0, 0)

    def test_two_queues_in_one_thread_have_separate_answers(self, client: redis.Redis) -> None:
        first, second = RedisQueue("first", client), RedisQueue("second", client)
        for number in range(20):
            first.put(number)
            second.put(-number)
            one, two = must(first.get()), must(second.get())
            assert (one.body, two.body) == (number, -number)
            assert first.ack(one)
            assert second.ack(two)


LARGE = 256 * 1024

AT_ONCE = 4
"""How many bodies make a MiB."""


class TestLargeBodies:
    """A script stops reading after the record that completes a MiB."""

    @pytest.fixture
    def large(self, queue: RedisQueue) -> RedisQueue:
        queue.put_many([number.to_bytes(2, "big") + bytes(LARGE - 2) for number in range(40)])
        return queue

    def test_a_peek_takes_several_calls(self, large: RedisQueue, client: redis.Redis) -> None:
        large.peek()
        before = scripts_called(client)
        assert [int.from_bytes(body[:2], "big") for body in bodies(large.peek(40))] == list(range(40))
        assert scripts_called(client) - before == 40 / AT_ONCE

    def test_a_batch_ends_at_a_mebibyte_and_reads_no_further(self, large: RedisQueue, client: redis.Redis) -> None:
        for limit in (1, 3, 500):
            with record_reads(client) as read:
                found = large.get_many(limit)
            assert len(found) == min(limit, AT_ONCE)
            assert read == [message.id for message in found]

    def test_a_larger_body_is_claimed_alone(self, make: Callable[..., RedisQueue]) -> None:
        queue = make(max_body=2**22)
        queue.put_many([bytes(2**21), b"small"])
        assert [len(message.body) for message in queue.get_many(500)] == [2**21]
        assert bodies(queue.get_many(500)) == [b"small"]

    def test_draining_takes_a_call_for_each_mebibyte(self, large: RedisQueue, client: redis.Redis) -> None:
        found, scripts = len(large.get_many(500)), scripts_called(client)
        with record_reads(client) as read:
            while messages := large.get_many(500):
                found += len(messages)
        assert (found, len(read)) == (40, 40 - AT_ONCE)
        # The last call finds nothing and then looks for due messages.
        assert scripts_called(client) - scripts <= 40 / AT_ONCE + 2

    def test_a_put_with_an_existing_key_does_not_read_it(self, queue: RedisQueue, client: redis.Redis) -> None:
        queue.put(bytes(LARGE), dedupe_key="one")
        with record_reads(client) as read:
            queue.put_many([b"", b""], dedupe_key=lambda _: "one")
        assert read == []

    def test_a_page_of_the_quarantine_takes_several_calls(self, large: RedisQueue, client: redis.Redis) -> None:
        for id_ in client.hkeys(large._records.keys.records):
            client.hset(large._records.keys.records, id_, bytes(LARGE))
        assert large.get_many(500) == []
        large.quarantined(limit=1)
        scripts = scripts_called(client)
        assert [len(record.raw) for record in large.quarantined(offset=1, limit=500)] == [LARGE] * 39
        assert scripts_called(client) - scripts == 40 / AT_ONCE

    def test_a_page_of_dead_letters_takes_several_calls(self, large: RedisQueue, client: redis.Redis) -> None:
        while messages := large.get_many(40):
            large.nack_many(messages, dead=True)
        large.dead_letters(limit=1)
        before = scripts_called(client)
        found = [letter.body[:2] for letter in large.dead_letters(offset=1, limit=38)]
        assert len(set(found)) == len(found) == 38
        assert scripts_called(client) - before == 40 / AT_ONCE

    def test_a_redrive_reads_none_of_them(self, large: RedisQueue, client: redis.Redis) -> None:
        while messages := large.get_many(40):
            large.nack_many(messages, dead=True)
        with record_reads(client) as read:
            assert large.redrive() == 40
        assert read == []


def scripts_called(client: redis.Redis) -> int:
    """Return the number of scripts that the server of *client* has run."""
    calls = client.info("commandstats")
    return sum(calls.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))
