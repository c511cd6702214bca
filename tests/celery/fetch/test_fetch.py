"""Atomic fetch: one script takes a message from its queue and records it as in flight."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer

from redis_queue.celery.kombu import connection as kombu_connection
from tests.support.celery import kombu_consumer
from tests.support.celery.fetching import Taker, connected, fetch_of, publish, publish_all
from tests.support.celery.leasing import Leasing
from tests.support.celery.leasing_names import MEASURE, MEASURED, WAIT
from tests.support.paths import ROOT
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.wait import must, wait_until


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


def peek(end: socket.socket) -> bytes:
    """Return the readable bytes of the socket *end* without consuming them."""
    try:
        return end.recv(65536, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


def run_and_wait(server: RedisServer, kind: str) -> int:
    """Run a consumer of this kind until it ends."""
    return subprocess.run(
        [sys.executable, "-m", "tests.support.celery.kombu_consumer", server.url, kind], cwd=ROOT, check=False
    ).returncode


@pytest.mark.parametrize(("kind", "lost"), [("stock", True), ("atomic", False)])
def test_killed_consumer_loses_its_message_with_kombu_but_not_with_atomic_fetch(
    server: RedisServer, client: redis.Redis, kind: str, *, lost: bool
) -> None:
    with connected(server) as connection:
        publish(connection, "precious", kombu_consumer.QUEUE)
    assert run_and_wait(server, kind) < 0
    assert client.llen(kombu_consumer.QUEUE) == 0
    assert client.hlen("unacked") == (0 if lost else 1)
    if lost:
        return
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.celery.kombu_consumer", server.url, "drain"], cwd=ROOT
    ) as drain:
        try:
            wait_until(
                lambda: client.lrange(kombu_consumer.DONE, 0, -1) == [b"precious"],
                description="the message to come back",
            )
            wait_until(lambda: not client.hlen("unacked"), description="the message to be settled")
        finally:
            drain.kill()


UNREADABLE = [
    b"",
    b"no message",
    b"\xff\xfe",
    b"[]",
    b"{}",
    b"5",
    b"null",
    b"[" * 100_000,
    b'{"properties":5}',
    b'{"properties":{"body_encoding":"base64"},"body":"x"}',
    b'{"properties":{"body_encoding":"base64"},"body":5}',
    b'{"properties":{"body_encoding":"unheard of"},"body":"x"}',
    b'{"properties":{},"body":{"__type__":"decimal","__value__":"x"}}',
    b'{"properties":{"x":{"__type__":"unheard of","__value__":1}},"body":""}',
]


DENIED = ["-eval", "-client|tracking", "resetchannels", "-ltrim", "-zcard", "-zmscore", "-subscribe"]


class TestFetch:
    def test_takes_messages_by_priority_and_records_them(self, server: RedisServer, client: redis.Redis) -> None:
        with connected(server) as connection:
            for number, priority in enumerate([9, 0, 3, 0]):
                publish(connection, number, priority=priority)
            taker = Taker(connection, ["q"], 10)
            assert taker.take(4) == [1, 3, 2, 0]
            tags = {tag.decode(): score for tag, score in client.zrange("unacked_index", 0, -1, withscores=True)}
            assert tags.keys() == {message.delivery_tag for message in taker.messages}
            assert tags == pytest.approx(taker.leases.held, abs=0.01)
            raw = must(client.hget("unacked", taker.messages[0].delivery_tag))
            payload, exchange, key = json.loads(raw)
            assert (exchange, key) == ("", "q")
            assert payload["properties"]["delivery_tag"] != taker.messages[0].delivery_tag
            taker.settle()
            assert not client.exists("unacked", "unacked_index")
            assert taker.leases.held == {}

    @pytest.mark.parametrize("priority", [0, 6])
    def test_is_notified_of_new_messages(self, server: RedisServer, priority: int) -> None:
        with connected(server) as connection, connected(server) as other:
            taker = Taker(connection, ["a", "b"], 1)
            for number, queue in enumerate(["a", "b", "b", "a"]):
                for _ in range(2):
                    with pytest.raises(TimeoutError):
                        connection.drain_events(timeout=0.1)
                publish(other, number, queue, priority=priority)
                assert taker.take(number + 1)[-1] == number
                taker.settle()

    def test_reads_a_reply_and_a_notification_together(self, server: RedisServer) -> None:
        with connected(server) as connection, connected(server) as other:
            taker = Taker(connection, ["q"], 1)
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    connection.drain_events(timeout=0.1)
            for number in range(4):
                publish(other, number)
            # It is notified and, before reading that, asks Redis: both replies are in one read of the socket.
            fetch = fetch_of(taker)
            fetch.wakeups.ping()
            wait_until(
                lambda: {b"pong", b"invalidate"} <= set(re.findall(b"pong|invalidate", peek(fetch.wakeups.socket))),
                description="a reply and a notification",
            )
            for count in range(1, 5):
                assert taker.take(count) == list(range(count))
                taker.settle()

    @pytest.mark.parametrize("denied", DENIED)
    def test_without_a_permission_it_consumes_as_kombu_does(
        self, server: RedisServer, client: redis.Redis, caplog: pytest.LogCaptureFixture, denied: str
    ) -> None:
        client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">pw", "~*", "&*", "+@all", denied)
        client.script_flush()
        url = f"redis+socket://worker:pw@{server.socket}"
        with Connection(url) as connection, caplog.at_level(logging.WARNING):
            taker = Taker(connection, ["q"], 2)
            publish_all(connection, 3)
            assert taker.take(2) == [0, 1]
            assert client.hlen("unacked") == 2
            assert client.llen("q") == 1
            for message in taker.messages:
                message.ack()
            assert taker.take(3) == [0, 1, 2]
            wait_until(
                lambda: taker.turn() or client.hlen("unacked") == client.zcard("unacked_index") == 1,
                description="the settled messages",
            )
        (record,) = [record for record in caplog.records if "atomic fetch is off" in record.message]
        assert "permission" in record.message

    def test_takes_no_more_than_the_worker_wants(self, server: RedisServer, client: redis.Redis) -> None:
        with connected(server) as connection:
            publish_all(connection, 5)
            taker = Taker(connection, ["q"], 2)
            assert taker.take(2) == [0, 1]
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.2)
            assert client.llen("q") == 3
            taker.settle()
            assert taker.take(4) == [0, 1, 2, 3]

    def test_shares_a_queue_with_stock_consumers(self, server: RedisServer, client: redis.Redis) -> None:
        with connected(server) as connection, connected(server) as stock:
            got: list[Any] = []
            consumer = Consumer(
                stock.default_channel,
                [Queue("q")],
                on_message=lambda message: (got.append(message.payload), message.ack()),
            )
            consumer.consume()
            taker = Taker(connection, ["q"], 1)
            for number in range(40):
                publish(stock, number)

            def all_came() -> bool:
                for end in (connection, stock):
                    with suppress(TimeoutError):
                        end.drain_events(timeout=0.01)
                taker.settle()
                return len(got) + len(taker.got) >= 40

            wait_until(all_came, description="all messages")
            assert sorted(got + taker.got) == list(range(40))
            taker.settle()
            wait_until(lambda: all_came() and not client.hlen("unacked"), description="the settled messages")

    def test_returns_rejected_messages_to_their_own_queue(self, server: RedisServer, client: redis.Redis) -> None:
        with connected(server) as connection:
            publish(connection, "again")
            taker = Taker(connection, ["q"], 1)
            taker.take(1)
            taker.messages.pop().reject(requeue=True)
            assert taker.take(2) == ["again", "again"]
            assert taker.messages[-1].delivery_info["redelivered"]
            taker.settle()
            assert client.hlen("unacked") == 0

    def test_uses_the_prefix_of_the_broker(self, server: RedisServer, client: redis.Redis) -> None:
        with connected(server, global_keyprefix="shop:") as connection:
            publish(connection, 1)
            taker = Taker(connection, ["q"], 1)
            taker.take(1)
            assert client.hlen("shop:unacked") == client.zcard("shop:unacked_index") == 1
            taker.settle()
            assert client.hlen("shop:unacked") == 0

    def test_quarantines_unreadable_messages_and_continues(self, server: RedisServer) -> None:
        with connected(server) as connection, server.client() as client:
            client.lpush("q", *UNREADABLE)
            publish(connection, "good")
            taker = Taker(connection, ["q"], 100)
            assert taker.take(1) == ["good"]
            assert taker.leases.aside == UNREADABLE

    def test_leaves_no_ack_consumers_to_kombu(self, server: RedisServer, client: redis.Redis) -> None:
        with connected(server) as connection:
            publish(connection, 1)
            taker = Taker(connection, ["q"], 1, no_ack=True)
            assert taker.take(1) == [1]
            assert client.hlen("unacked") == 0

    def test_gives_up_a_silent_connection(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kombu_connection, "MIN_TIMEOUT", 0.5)
        with FaultProxy(str(server.socket)) as proxy, Connection(proxy.url) as connection:
            kombu_connection.add_timeouts(connection, 3)
            publish(connection, 1)
            taker = Taker(connection, ["q"], 1)
            taker.take(1)
            proxy.mute()
            taker.messages.pop().ack()
            with pytest.raises(redis.TimeoutError):
                connection.drain_events(timeout=30)
            assert len(taker.leases.settlement) == 1

    @pytest.mark.parametrize("kind", ["normal", "pubsub"])
    def test_continues_after_its_connections_were_cut(
        self, server: RedisServer, client: redis.Redis, kind: str
    ) -> None:
        leasing = Leasing(server, client, settings={"redis_queue_atomic_fetch": True})
        with leasing.worker("one", pool="threads").ready() as one:
            leasing.end_task("one")
            leasing.send(WAIT)
            leasing.wait_for_ends(1)
            # The task ends before its acknowledgement, so it would run twice.
            leasing.wait_until_settled()
            client.client_kill_filter(_type=kind, skipme=True)
            leasing.end_task("one")
            leasing.send(WAIT)
            leasing.wait_for_ends(2)
            leasing.wait_until_settled()
            assert one.finish() == 0


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_fifty_lost_connections_repeat_no_task_and_leave_nothing_open(server: RedisServer, client: redis.Redis) -> None:
    # The tasks use another Redis, where nothing is cut.
    with RedisServer() as store, store.client() as notes:
        settings = {"worker_prefetch_multiplier": 4}
        leasing = Leasing(store, notes, f"redis+socket://{server.socket}", settings=settings, broker=client)
        ids: list[str] = []

        def measured() -> list[int]:
            notes.delete(MEASURED)
            leasing.send(MEASURE)
            found: Any = wait_until(lambda: notes.lindex(MEASURED, 0), description="the figures of the worker")
            return list(json.loads(found))

        with leasing.worker("one", timeout=30) as one:

            def losses() -> int:
                return one.output.count("Connection to broker lost")

            one.wait_for_output("ready.")
            for cut in range(50):
                ids += [leasing.send(WAIT).id for _ in range(4)]
                leasing.wait_for_starts(len(ids) - 3)
                client.client_kill_filter(_type=("normal", "pubsub")[cut % 2], skipme=True)
                leasing.end_task("one", 4)
                wait_until(lambda: losses() > cut, description="the worker to notice")  # noqa: B023
                leasing.wait_for_ends(len(ids))
                if cut == 4:
                    files, threads, memory = *measured(), psutil.Process(one.pid).memory_info().rss
            leasing.wait_until_settled()
            files_now, threads_now = measured()
            assert sorted(leasing.started) == sorted(leasing.ended) == sorted(ids)
            assert files_now - files < 10
            assert threads_now <= threads
            assert psutil.Process(one.pid).memory_info().rss - memory < 8 * 1024 * 1024
            assert "lost the lease" not in one.output
            assert one.finish() == 0
        assert not client.exists(leasing.queue, "unacked", "unacked_index")


def test_large_messages_are_fetched_a_mebibyte_at_a_time(server: RedisServer, client: redis.Redis) -> None:
    with connected(server) as connection:
        for number in range(9):
            publish(connection, [number, "x" * 300_000])
        taker = Taker(connection, ["q"], prefetch=9)
        wait_until(lambda: connection.drain_events(timeout=1) or taker.got, description="the first")
        assert client.hlen("unacked") == 3
        assert [number for number, _ in taker.take(9)] == list(range(9))
        taker.settle()
    assert client.llen("q") == 0


def test_a_forked_child_does_not_keep_its_connections_open(server: RedisServer, client: redis.Redis) -> None:
    with connected(server) as connection:
        taker = Taker(connection, ["q"], 1)
        publish(connection, 1)
        taker.take(1)
        fetch = fetch_of(taker)
        ends = [end.fileno() for end in (fetch.commands.socket, fetch.wakeups.socket)]
        child = os.fork()
        if not child:
            taker.channel._after_fork()
            open_ends = [number for number in ends if Path(f"/proc/self/fd/{number}").exists()]
            os._exit(len(open_ends))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        publish(connection, 2)
        taker.settle()
        assert taker.take(2) == [1, 2]
        taker.settle()
