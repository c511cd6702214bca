"""Consumer: messages whose handlers return, raise, hang or are interrupted."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import redis

from redis_queue import Consumer, Dead, InvalidValueError, Message, Nack, RedisQueue, WrongTypeError, aio
from redis_queue.aio.calls import in_thread
from redis_queue.basics.waits import retry_delay
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

LEASE = 0.6


@pytest.fixture
def queue(client: redis.Redis) -> RedisQueue:
    return RedisQueue("work", client, lease=LEASE, max_deliveries=3, poll_interval=0.1)


class OnLoop:
    """A Consumer for asyncio that is used as the synchronous one; its coroutine handlers call *handler* in threads."""

    def __init__(self, queue: RedisQueue, handler: Any, **options: Any) -> None:
        async def handle(message: Message) -> Any:
            return await in_thread(lambda: handler(message))

        on_loop = aio.RedisQueue(queue.name, queue.client, settings=queue.settings)
        self._consumer = aio.Consumer(on_loop, handle if callable(handler) else handler, **options)
        self.stop = self._consumer.stop

    def run(self) -> None:
        asyncio.run(self._consumer.run())


@pytest.fixture(params=["threads", "asyncio"], autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with both consumers."""
    if request.param == "asyncio":
        monkeypatch.setattr(sys.modules[__name__], "Consumer", OnLoop)


@contextmanager
def running(queue: RedisQueue, handler: Callable[[Message], Any], **options: Any) -> Iterator[Consumer]:
    """Run a consumer in a thread and stop it afterwards."""
    consumer = Consumer(queue, handler, **options)
    thread = threading.Thread(target=consumer.run)
    thread.start()
    try:
        yield consumer
    finally:
        consumer.stop()
        thread.join(20)
        assert not thread.is_alive()


def is_empty(queue: RedisQueue) -> bool:
    stats = queue.stats()
    return not stats.ready + stats.delayed + stats.in_flight


@pytest.mark.parametrize(("concurrency", "batch"), [(1, 1), (4, 1), (1, 50), (3, 7)])
def test_every_message_is_handled_once_and_acked(queue: RedisQueue, concurrency: int, batch: int) -> None:
    queue.put_many(range(200))
    seen: list[int] = []
    with running(queue, lambda message: seen.append(message.body), concurrency=concurrency, batch=batch):
        wait_until(lambda: is_empty(queue), description="an empty queue")

    assert sorted(seen) == list(range(200))
    assert queue.stats().acked == 200


def test_one_thread_keeps_the_order(queue: RedisQueue) -> None:
    queue.put_many(range(50))
    seen: list[int] = []
    with running(queue, lambda message: seen.append(message.body), batch=10):
        wait_until(lambda: is_empty(queue), description="an empty queue")

    assert seen == list(range(50))


def test_a_failing_handler_neither_ends_the_loop_nor_loses_its_message(queue: RedisQueue) -> None:
    def handle(message: Message) -> None:
        seen.append((message.body, message.deliveries))
        if message.body == "bad":
            raise ValueError("no such customer")

    seen: list[tuple[str, int]] = []
    queue.put_many(["bad", "good"])
    with running(queue, handle, retry_delay=lambda _: 0.01):
        wait_until(lambda: queue.stats().dead == 1 and is_empty(queue), description="the bad message to be dead")

    assert sorted(seen) == [("bad", 1), ("bad", 2), ("bad", 3), ("good", 1)]
    (letter,) = queue.dead_letters()
    assert (letter.body, letter.deliveries, letter.reason) == ("bad", 3, "ValueError: no such customer")


def test_a_handler_may_delay_or_bury_its_message(queue: RedisQueue) -> None:
    def handle(message: Message) -> None:
        if message.body == "busy" and message.deliveries == 1:
            raise Nack("lock taken", delay=0.05)
        if message.body == "broken":
            raise Dead("never again")
        done.append(message.body)

    done: list[str] = []
    queue.put_many(["busy", "broken", "fine"])
    with running(queue, handle):
        wait_until(lambda: is_empty(queue), description="an empty queue")

    assert sorted(done) == ["busy", "fine"]
    (letter,) = queue.dead_letters()
    assert (letter.body, letter.reason) == ("broken", "never again")


def test_work_longer_than_the_lease_is_not_redelivered(queue: RedisQueue) -> None:
    release, calls = threading.Event(), []

    def handle(message: Message) -> None:
        calls.append(message.deliveries)
        assert release.wait(20)

    queue.put("long")
    with running(queue, handle, concurrency=2):
        wait_until(lambda: calls, description="the handler to start")
        first = queue.client.zscore(queue._records.keys.in_flight, queue_id(queue))
        extended = wait_until(
            lambda: (
                (queue.client.zscore(queue._records.keys.in_flight, queue_id(queue)) or 0) > first + 2 * LEASE * 1000
            ),
            description="the lease to be extended past twice its length",
        )
        assert extended
        queue.put_back()
        release.set()
        wait_until(lambda: is_empty(queue), description="an empty queue")

    assert calls == [1]
    assert queue.stats().acked == 1


def queue_id(queue: RedisQueue) -> bytes:
    (id_,) = queue.client.hkeys(queue._records.keys.records)
    return id_  # type: ignore[no-any-return]


def test_the_message_of_a_hung_handler_is_redelivered_after_max_runtime(
    queue: RedisQueue, caplog: pytest.LogCaptureFixture
) -> None:
    release, calls = threading.Event(), []

    def handle(message: Message) -> None:
        calls.append(message.deliveries)
        if message.deliveries == 1:
            assert release.wait(20)

    queue.put("hangs once")
    with caplog.at_level(logging.WARNING), running(queue, handle, concurrency=2, max_runtime=0.1):
        wait_until(lambda: calls == [1, 2], description="a second delivery while the first handler hangs")
        wait_until(lambda: queue.stats().acked == 1, description="the second delivery to be acked")
        release.set()
        wait_until(lambda: "ack refused" in caplog.text, description="the late ack to be refused")

    assert queue.stats().acked == 1


def test_stop_finishes_running_handlers_and_releases_other_messages(queue: RedisQueue) -> None:
    started, release = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        started.set()
        assert release.wait(20)

    queue.put_many(range(10))
    with running(queue, handle, batch=10) as consumer:
        assert started.wait(10)
        assert queue.stats().in_flight == 10
        consumer.stop()
        release.set()

    stats = queue.stats()
    assert (stats.acked, stats.ready, stats.in_flight) == (1, 9, 0)
    assert [(message.body, message.deliveries) for message in queue.peek(9)] == [(n, 0) for n in range(1, 10)]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_finished_messages_are_acked_while_the_next_handler_runs(queue: RedisQueue, concurrency: int) -> None:
    def handle(message: Message) -> None:
        if message.body == "slow":
            started.set()
            assert release.wait(20)

    started, release = threading.Event(), threading.Event()
    queue.put_many(["quick", "quick", "slow", "never begun"])
    with running(queue, handle, batch=4, concurrency=concurrency):
        assert started.wait(10)
        wait_until(lambda: queue.stats().acked == 2, description="the finished ones to be acked")
        assert queue.stats().in_flight == 2
        release.set()
        wait_until(lambda: is_empty(queue), description="an empty queue")

    assert queue.stats().acked == 4


def test_finished_messages_are_acked_after_an_outage_while_the_next_handler_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with RedisServer() as server, server.client() as client:
        queue = RedisQueue("work", client, poll_interval=0.1)
        started, release = threading.Event(), threading.Event()

        def handle(message: Message) -> None:
            if message.body == "quick":
                client.config_set("min-replicas-to-write", 1)
            else:
                started.set()
                assert release.wait(30)

        queue.put_many(["quick", "slow"])
        with running(queue, handle, batch=2):
            assert started.wait(10)
            wait_until(lambda: "cannot settle yet" in caplog.text, description="a refused ack")
            client.config_set("min-replicas-to-write", 0)
            wait_until(lambda: queue.stats().acked == 1, description="the finished one to be acked")
            release.set()

        assert queue.stats().acked == 2


def test_a_consumer_needs_one_script_per_batch(queue: RedisQueue) -> None:
    def handle(message: Message) -> None:
        if message.body == 0:
            queue.client.config_resetstat()
        if message.body == 49:
            calls.append(calls_of(queue.client, "evalsha"))
            consumer.stop()

    calls: list[int] = []
    queue.put_many(range(50))
    consumer = Consumer(queue, handle)
    consumer.run()

    assert calls == [49]


def test_what_is_done_is_acked_even_if_nothing_can_be_claimed(queue: RedisQueue) -> None:
    def handle(message: Message) -> None:
        if message.body == 1:
            queue.client.rename(queue._records.keys.ready, "aside")
            queue.client.set(queue._records.keys.ready, "not a list")

    queue.put_many(range(3))
    with pytest.raises(WrongTypeError, match="ready is a string"):
        Consumer(queue, handle, batch=2).run()
    assert queue.client.hget(queue._records.keys.meta, "acked") == b"2"


def test_a_message_acked_by_its_handler_is_reported(queue: RedisQueue, caplog: pytest.LogCaptureFixture) -> None:
    queue.put_many(range(3))
    with running(queue, queue.ack):
        wait_until(lambda: is_empty(queue), description="an empty queue")
        wait_until(lambda: caplog.text.count("ack refused") == 3, description="three reports")
    assert queue.stats().acked == 3


def test_a_paused_queue_acks_and_claims_nothing(queue: RedisQueue) -> None:
    def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == 0:
            queue.pause()

    seen: list[int] = []
    queue.put_many(range(2))
    with running(queue, handle):
        wait_until(lambda: queue.stats().acked == 1, description="the ack")
        stats = queue.stats()
        assert (seen, stats.ready, stats.in_flight) == ([0], 1, 0)
        queue.resume()
        wait_until(lambda: is_empty(queue), description="an empty queue")


def test_stop_gives_up_on_a_hung_handler_after_its_grace(queue: RedisQueue) -> None:
    started, release = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        started.set()
        assert release.wait(30)

    queue.put("hung")
    try:
        with running(queue, handle, grace=0.2) as consumer:
            assert started.wait(10)
            consumer.stop()
    finally:
        release.set()


def test_a_permanent_error_ends_the_consumer(queue: RedisQueue) -> None:
    queue.client.set(queue._records.keys.ready, "not a list")
    with pytest.raises(WrongTypeError, match="ready is a string"):
        Consumer(queue, lambda _: None, concurrency=3).run()


@contextmanager
def restarting(server: RedisServer, _: pytest.LogCaptureFixture) -> Iterator[None]:
    """Kill the server, and start it again after the block."""
    server.kill()
    yield
    server.restart()


@contextmanager
def refusing_writes(server: RedisServer, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Let the server refuse writes until an ack was refused after the block."""
    with server.client() as client:
        client.config_set("min-replicas-to-write", 1)
        yield
        wait_until(lambda: "cannot settle yet" in caplog.text, description="a refused ack")
        client.config_set("min-replicas-to-write", 0)


@pytest.mark.parametrize("outage", [restarting, refusing_writes])
def test_a_consumer_survives_an_outage_and_acks_finished_messages(
    outage: Callable[[RedisServer, pytest.LogCaptureFixture], AbstractContextManager[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with RedisServer(aof="always") as server:
        queue = RedisQueue("work", server.client(), poll_interval=0.1)
        started, release, seen = threading.Event(), threading.Event(), []

        def handle(message: Message) -> None:
            seen.append(message.body)
            started.set()
            assert release.wait(30)

        queue.put_many(["before", "after"])
        with running(queue, handle):
            assert started.wait(10)
            with outage(server, caplog):
                release.set()
            wait_until(lambda: is_empty(queue), description="an empty queue")

        assert seen == ["before", "after"]
        assert queue.stats().acked == 2


def test_a_killed_connection_does_not_stop_a_blocked_consumer(queue: RedisQueue) -> None:
    seen: list[str] = []
    with running(queue, lambda message: seen.append(message.body)):
        wait_until(lambda: blocked_clients(queue.client), description="the consumer to block")
        queue.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        queue.put("hello")
        wait_until(lambda: seen == ["hello"], description="the message")


def blocked_clients(client: redis.Redis) -> list[Any]:
    return [found for found in client.client_list() if found["cmd"] == "blpop"]


def test_idle_threads_share_one_connection(client: redis.Redis) -> None:
    queue = RedisQueue("work", client, poll_interval=0.5)
    with running(queue, lambda _: None, concurrency=16):
        wait_until(lambda: blocked_clients(client), description="the consumer to block")
        client.config_resetstat()
        wait_until(lambda: calls_of(client, "blpop") >= 3, description="three polls")

        assert len(blocked_clients(client)) <= 1
        assert calls_of(client, "evalsha") <= 2 * calls_of(client, "blpop") + 2


def calls_of(client: redis.Redis, command: str) -> int:
    return int(client.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 0}, {"concurrency": True}, {"batch": 0}, {"batch": 501}, {"grace": -1}, {"max_runtime": "1"}],
)
def test_invalid_options_are_refused(queue: RedisQueue, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(InvalidValueError, match=name):
        Consumer(queue, lambda _: None, **options)
    with pytest.raises(InvalidValueError, match="handler"):
        Consumer(queue, None)  # type: ignore[arg-type]


def test_the_retry_delay_grows_to_five_minutes() -> None:
    delays = [retry_delay(number) for number in range(1, 200)]
    assert 0.75 <= delays[0] <= 1
    assert all(delay <= 300 for delay in delays)
    assert min(delays[20:]) >= 225
