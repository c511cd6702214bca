"""Replies, connections, scripts and servers that fail during a call: one effect and the true answer."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue, StoreError, StoreRefusedError, StoreUnavailableError, WrongTypeError
from redis_queue.delay.model import Push
from redis_queue.queue.claims import QueueClaims
from redis_queue.store.script_files import load
from tests.support.binaries import KINDS
from tests.support.clock import Clock
from tests.support.paths import ROOT
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer, client_options
from tests.support.store.stage import COUNTS, LATER, VERBS, Stage, rehearse, state, verbs
from tests.support.wait import must, wait_until


class TestFailureAfterClaim:
    """A claimed message is returned even if the cleanup after the claim fails."""

    @pytest.mark.parametrize("failure", [StoreUnavailableError, StoreRefusedError, WrongTypeError])
    def test_the_claimed_message_is_returned(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch, failure: type[StoreError]
    ) -> None:
        def fail(_name: str, **_arguments: Any) -> Any:
            raise failure

        queue = stage.on(stage.queue.client, later=LATER).queue
        monkeypatch.setattr(queue._records, "run", fail)
        assert must(queue.get(block=False)).body == "ready"
        assert queue.get(block=False) is not None
        with pytest.raises(failure):
            queue.get(block=False)


class TestScriptFlush:
    @verbs
    def test_every_verb_loads_its_script(self, client: redis.Redis, verb: str) -> None:
        known = rehearse(client, verb)
        client.script_flush()
        assert VERBS[verb].call(known.stage.on(client)) == known.answer
        assert state(client) == known.after

    def test_a_push_of_many_chunks_works(self, client: redis.Redis) -> None:
        timed = DelayQueue("orders", client)

        def items() -> Iterator[Push]:
            for number in range(1200):
                if number % 500 == 0:
                    client.script_flush()
                yield Push(number, id=str(number))

        assert len(timed.push_many(items())) == 1200
        assert len(timed) == 1200


@pytest.mark.usefixtures("without_pauses")
class TestLostReply:
    @verbs
    @pytest.mark.parametrize("losses", [1, 2])
    def test_it_has_one_effect_and_the_true_answer(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis, verb: str, losses: int
    ) -> None:
        known = rehearse(client, verb)
        proxy.drop_next_reply(losses, matching=known.sha)
        found = VERBS[verb].call(known.stage.on(through))
        assert proxy.pending_drops == 0
        assert state(client) == known.after
        if verb not in COUNTS:
            assert found == known.answer

    def test_a_processed_message_is_not_put_again(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis, pool: ThreadPoolExecutor
    ) -> None:
        queue = RedisQueue("orders", client)
        producer = RedisQueue("orders", through)
        producer.put("warm")
        queue.purge()

        def work() -> bool:
            message = queue.get(timeout=10)
            return message is not None and queue.ack(message)

        future = pool.submit(work)
        wait_until_blocked(client)
        proxy.drop_next_reply(matching=load("queue/put").sha.encode())
        assert producer.put("once", dedupe_key="k") == "k"
        assert future.result(5)
        assert proxy.pending_drops == 0
        assert (queue.stats().put, queue.stats().ready) == (2, 0)

    def test_a_moved_entry_is_not_pushed_again(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis, pool: ThreadPoolExecutor
    ) -> None:
        timed = DelayQueue("orders", client)
        pusher = DelayQueue("orders", through)
        pusher.push("warm", destination="warm")
        timed.move_due()
        future = pool.submit(lambda: wait_until(timed.move_due, description="something to move"))
        proxy.drop_next_reply(matching=load("delay/push").sha.encode())
        assert pusher.push("once", id="k", destination="target") == "k"
        assert future.result(5) == 1
        assert proxy.pending_drops == 0
        assert timed.move_due() == 0
        assert client.llen("target") == 1

    def test_messages_keep_their_order(self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis) -> None:
        names = ["z", "y", "m", "a", "b"]
        RedisQueue("orders", client).put_many(names[:3])
        RedisQueue("orders", client).put_many(names[3:])
        RedisQueue("warm", client).get(block=False)
        proxy.drop_next_reply(matching=load("queue/get").sha.encode())
        assert [message.body for message in RedisQueue("orders", through).get_many(5)] == names

    def test_a_repeated_claim_has_the_same_entries(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis
    ) -> None:
        clock = Clock()
        timed = DelayQueue("orders", client, clock=clock)
        timed.push_many([Push(name, id=name, delay=delay) for delay, name in enumerate(["z", "a", "m"])])
        waiting = timed.list()
        timed.claim()
        clock.now += 60_000
        proxy.drop_next_reply(matching=load("delay/claim").sha.encode())
        found = DelayQueue("orders", through, clock=clock).claim(2)
        assert {entry.id for entry in found} == {entry.id for entry in waiting[1:]}
        assert timed.stats().in_flight == 3

    def test_a_get_that_found_only_unreadable_messages_looks_again(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis
    ) -> None:
        queue = RedisQueue("orders", client)
        queue.put_many(["bad", "good"], dedupe_key=str)
        client.hset(queue._records.keys.records, "bad", b"garbage")
        queue.peek()
        RedisQueue("warm", client).get(block=False)
        proxy.drop_next_reply(matching=load("queue/get").sha.encode())
        assert must(RedisQueue("orders", through).get(block=False)).body == "good"

    def test_a_redrive_of_many_returns_all(self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis) -> None:
        queue = RedisQueue("orders", client, max_deliveries=1)
        queue.put_many(range(1100))
        for _ in range(3):
            queue.nack_many(queue.get_many(500))
        RedisQueue("warm", client).redrive(["x"])
        proxy.drop_next_reply(matching=load("records/redrive").sha.encode())
        RedisQueue("orders", through).redrive()
        assert proxy.pending_drops == 0
        stats = queue.stats()
        assert (stats.ready, stats.dead) == (1100, 0)

    def test_a_put_back_of_many_returns_all(self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis) -> None:
        clock = Clock()
        queue = RedisQueue("orders", client, clock=clock)
        queue.put_many(range(1100))
        for _ in range(3):
            queue.get_many(500)
        clock.now += 60_000
        RedisQueue("warm", client).put_back()
        proxy.drop_next_reply(matching=load("records/put_back").sha.encode())
        RedisQueue("orders", through, clock=clock).put_back()
        stats = queue.stats()
        assert (stats.ready, stats.in_flight, stats.redelivered) == (1100, 0, 1100)

    def test_a_move_of_many_moves_each_once(self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis) -> None:
        timed = DelayQueue("orders", client)
        timed.push_many([Push(number, destination="target") for number in range(1100)])
        DelayQueue("warm", client).move_due()
        proxy.drop_next_reply(matching=load("delay/move_due").sha.encode())
        DelayQueue("orders", through).move_due()
        assert client.lrange("target", 0, -1) == [b"%d" % number for number in reversed(range(1100))]

    @pytest.mark.parametrize("command", [b"BLPOP", b"HSET", b"HDEL", b"RPUSH"])
    def test_plain_commands_are_repeated_too(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis, command: bytes
    ) -> None:
        proxy.drop_next_reply(matching=command)
        queue = RedisQueue("orders", through)
        queue.put("hello")
        queue.pause()
        assert queue.stats().paused
        assert queue.get(timeout=0.05) is None
        queue.resume()
        message = must(queue.get(timeout=5))
        assert queue.ack(message)
        assert queue.get(timeout=0.05) is None
        assert proxy.pending_drops == 0

    @verbs
    def test_a_connection_that_was_cut_while_idle_is_replaced_silently(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis, verb: str
    ) -> None:
        known = rehearse(client, verb)
        behind = known.stage.on(through)
        behind.queue.stats()
        behind.timed.stats()
        proxy.cut()
        assert VERBS[verb].call(behind) == known.answer
        assert state(client) == known.after


def wait_until_blocked(client: redis.Redis, number: int = 1) -> None:
    """Wait until *number* clients are blocked in Redis."""
    wait_until(lambda: client.info("clients")["blocked_clients"] == number, description=f"{number} blocked clients")


class TestBlockedGet:
    def test_a_get_whose_connection_is_killed_waits_again(
        self, client: redis.Redis, redis_url: str, pool: ThreadPoolExecutor
    ) -> None:
        queue = RedisQueue("orders", redis_url)
        future = pool.submit(queue.get, timeout=30)
        for _ in range(3):
            wait_until_blocked(client)
            client.client_kill_filter(_type="normal", skipme=True)
            wait_until_blocked(client, 0)
        wait_until_blocked(client)
        RedisQueue("orders", client).put("hello")
        message = must(future.result(5))
        assert (message.body, message.deliveries) == ("hello", 1)

    def test_a_call_works_after_all_idle_connections_were_cut(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis
    ) -> None:
        queue = RedisQueue("orders", through)
        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(queue.get, timeout=20) for _ in range(8)]
            wait_until_blocked(client, 8)
            RedisQueue("orders", client).put_many(range(8))
            assert len({message.id for future in futures if (message := future.result(5))}) == 8
        assert proxy.open_connections >= 8
        proxy.cut()
        assert queue.stats().in_flight == 8

    def test_a_get_survives_a_restart_of_the_server(self, pool: ThreadPoolExecutor) -> None:
        with RedisServer(aof="always") as server, server.client() as client:
            queue = RedisQueue("orders", server.url)
            queue.put("before")
            held = must(queue.get(block=False))
            future = pool.submit(queue.get, timeout=30)
            wait_until_blocked(client)
            server.restart()
            wait_until_blocked(client)
            RedisQueue("orders", server.url).put("after")
            message = must(future.result(10))
            assert message.body == "after"
            assert queue.ack_many([held, message]) == [True, True]
            assert queue.stats().acked == 2

    def test_a_get_survives_a_long_outage_of_the_server(
        self, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        attempts, claim = Counter[str](), QueueClaims._claim
        monkeypatch.setattr(QueueClaims, "_claim", lambda *given: (attempts.update(["claim"]), claim(*given))[1])
        with RedisServer(aof="always") as server:
            queue = RedisQueue("orders", server.url)
            queue.put("kept")
            with caplog.at_level(logging.WARNING):
                server.kill()
                future = pool.submit(queue.get, timeout=30)
                wait_until(lambda: attempts["claim"] >= 3, description="three attempts")
                with pytest.raises(StoreUnavailableError):
                    queue.put("refused")
                assert not future.done()
                server.restart()
            assert must(future.result(10)).body == "kept"
            assert caplog.text.count("Redis is away") < 20, "the attempts must have pauses"

    def test_consume_survives_restarts_of_the_server(self, pool: ThreadPoolExecutor) -> None:
        with RedisServer(aof="always") as server, server.client() as client:
            queue = RedisQueue("orders", server.url)
            taken: list[Any] = []

            def consume() -> None:
                for _, message in zip(range(3), queue.consume(timeout=20), strict=False):
                    taken.append(message.body)

            future = pool.submit(consume)
            for number in range(3):
                wait_until_blocked(client)
                server.restart()
                RedisQueue("orders", server.url).put(number)
                wait_until(lambda: len(taken) > number, description="the message")  # noqa: B023
            future.result(10)
            assert taken == [0, 1, 2]

    def test_idle_connections_that_the_server_closes_are_replaced(self, caplog: pytest.LogCaptureFixture) -> None:
        with RedisServer("--timeout", "1") as server, server.client() as client:
            queue = RedisQueue("orders", server.url)
            timed = DelayQueue("orders", server.url)
            queue.put("hello")
            timed.push("later", delay=60)
            wait_until(lambda: len(client.client_list()) == 1, description="the server to close idle connections")
            with caplog.at_level(logging.WARNING):
                assert [message.body for message in queue.get_many(5)] == ["hello"]
                assert timed.next_due() is not None
                assert queue.get(timeout=1.5) is None
        assert caplog.text == ""

    @pytest.mark.parametrize("poll_interval", [1, 30])
    def test_a_client_with_a_short_timeout_may_wait_for_long(
        self,
        client: redis.Redis,
        redis_url: str,
        pool: ThreadPoolExecutor,
        caplog: pytest.LogCaptureFixture,
        poll_interval: float,
    ) -> None:
        hasty = redis.Redis.from_url(redis_url, **client_options(socket_timeout=0.2))
        queue = RedisQueue("orders", hasty, poll_interval=poll_interval)
        with caplog.at_level(logging.WARNING):
            assert queue.get(timeout=1) is None
            future = pool.submit(queue.get, timeout=10)
            wait_until_blocked(client)
            RedisQueue("orders", client).put("hello")
            message = future.result(5)
        assert message is not None
        assert message.body == "hello"
        assert caplog.text == ""


@pytest.mark.parametrize("kind", [*KINDS, "path"])
def test_a_get_with_a_tiny_timeout_ends_on_every_version(kind: str) -> None:
    # Redis 6.2 treats a timeout of one millisecond as no timeout at all.
    with RedisServer(kind=kind) as server, server.client(socket_timeout=2.0) as client:
        queue = RedisQueue("orders", client)
        for microseconds in (1, 500, 1000, 1001, 1500, 2000):
            assert queue.get(timeout=microseconds / 1_000_000) is None
        queue.put("soon", delay=0.001)
        assert queue.get(timeout=5) is not None


class TestHangingServer:
    @pytest.fixture
    def hasty(self, server: RedisServer) -> Iterator[redis.Redis]:
        """A client with a very short timeout."""
        with server.client(socket_timeout=0.2, socket_connect_timeout=0.2) as hasty:
            yield hasty

    def test_a_put_that_timed_out_is_stored_once(self, server: RedisServer, hasty: redis.Redis) -> None:
        queue = RedisQueue("orders", hasty)
        queue.put("first")
        server.pause()
        with pytest.raises(StoreUnavailableError, match="did not answer in time"):
            queue.put("second")
        server.resume()
        with server.client() as client:
            patient = RedisQueue("orders", client)
            wait_until(lambda: patient.stats().ready == 2, description="the late put")
            assert [message.body for message in patient.get_many(10)] == ["first", "second"]
            assert patient.stats().put == 2

    def test_the_claim_of_a_get_that_timed_out_is_put_back(self, server: RedisServer, hasty: redis.Redis) -> None:
        queue = RedisQueue("orders", hasty, lease=0.5)
        queue.put_many(["first", "second"])
        server.pause()
        with pytest.raises(StoreUnavailableError):
            queue.get(block=False)
        server.resume()
        found = []
        with server.client() as client:
            patient = RedisQueue("orders", client)
            while message := patient.get(timeout=1):
                assert patient.ack(message)
                found.append(message.body)
            assert sorted(found) == ["first", "second"]
            assert patient.stats().acked == 2


FORK = """
import os, sys
from redis_queue import DelayQueue, RedisQueue
queue = RedisQueue("orders", sys.argv[1])
timed = DelayQueue("orders", sys.argv[1])
queue.put("parent, before")
message = queue.get(block=False)
timed.push("parent, before", id="before")
children = []
for number in range(4):
    child = os.fork()
    if not child:
        for turn in range(50):
            queue.put(f"{number}/{turn}")
            timed.push(f"{number}/{turn}", id=f"{number}/{turn}")
            taken = queue.get(block=False)
            assert taken is not None and queue.ack(taken), taken
        os._exit(0)
    children.append(child)
for turn in range(50):
    queue.put(f"parent/{turn}")
    taken = queue.get(block=False)
    assert taken is not None and queue.ack(taken), taken
for child in children:
    _, status = os.waitpid(child, 0)
    assert status == 0, status
assert queue.ack(message)
stats = queue.stats()
assert (stats.put, stats.acked, stats.ready, stats.in_flight) == (251, 251, 0, 0), stats
assert len(timed) == 201, len(timed)
"""


def test_parent_and_forked_children_use_the_same_queue_objects(client: redis.Redis, redis_url: str) -> None:
    root = ROOT
    done = subprocess.run(
        [sys.executable, "-c", FORK, redis_url], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    slots = [key for key in client.scan_iter() if b":queue:orders}:slot:" in key]
    assert len(slots) == 5, "each process has its own slot"


@pytest.mark.usefixtures("without_pauses")
def test_a_claim_without_a_reply_is_found_among_many_longer_leases(
    client: redis.Redis, proxy: FaultProxy, through: redis.Redis
) -> None:
    queue = RedisQueue("orders", client)
    queue.put_many(range(1100))
    held = [message for _ in range(3) for message in queue.get_many(500)]
    assert all(queue.extend_many(held, 3600))
    queue.put("one")
    proxy.drop_next_reply(matching=load("queue/get").sha.encode())
    message = RedisQueue("orders", through).get(block=False)
    assert proxy.pending_drops == 0
    assert message is not None
    assert message.body == "one"
