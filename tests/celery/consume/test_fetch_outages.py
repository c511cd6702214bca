"""Atomic fetch with silent connections, and after a restart of Redis: idle workers get their messages soon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import redis
from kombu.connection import Connection

from redis_queue.celery.consume import fetch as fetches
from redis_queue.celery.kombu import connection as kombu_connection
from redis_queue.store.script_cache import load_scripts
from tests.support.celery.fetching import Taker, connected, drained, publish, wait_until_idle
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.wait import wait_until


class TestSilentConnection:
    """One of the two connections receives nothing more; looks are half a second apart, as is the timeout."""

    @pytest.fixture
    def proxy(
        self, redis_server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[FaultProxy]:
        assert client.dbsize() == 0
        monkeypatch.setattr(kombu_connection, "LEAST", 0.5)
        with FaultProxy(str(redis_server.socket)) as proxy:
            yield proxy

    @staticmethod
    def connect(proxy: FaultProxy) -> Connection:
        connection = Connection(proxy.url, transport_options={"visibility_timeout": 3})
        kombu_connection.add_timeouts(connection, 3)
        return connection

    def test_of_wake_ups_costs_a_look_and_is_replaced(self, proxy: FaultProxy, redis_server: RedisServer) -> None:
        with self.connect(proxy) as connection, connected(redis_server) as producer:
            taker = Taker(connection, ["q"], 4)
            fetch = wait_until_idle(taker)
            proxy.mute_next(matching=b"PING")
            fetch.wakeups.ping()
            wait_until(lambda: not proxy.pending_drops, description="the fault")
            publish(producer, "x")
            assert taker.take(1) == ["x"]
            wait_until(
                lambda: drained(connection) and taker.channel._fetch is not fetch,
                timeout=5,
                description="the silent connection to be replaced",
            )
            publish(producer, "y")
            assert taker.take(2) == ["x", "y"]

    def test_of_commands_is_replaced(self, proxy: FaultProxy) -> None:
        with self.connect(proxy) as connection:
            taker = Taker(connection, ["q"], 4)
            fetch = wait_until_idle(taker)
            proxy.mute_next(matching=b"EVALSHA")
            wait_until(
                lambda: drained(connection) and taker.channel._fetch is not fetch,
                timeout=5,
                description="the silent connection to be replaced",
            )
            wait_until_idle(taker)
            publish(connection, "x")
            assert taker.take(1) == ["x"]


def test_idle_workers_are_woken_after_a_restart_that_kept_the_keys_of_their_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetches, "LOOK", 600.0)
    monkeypatch.setattr(fetches, "LONGEST_LOOK", 600.0)
    with RedisServer(aof="always") as server, ExitStack() as stack:
        connections = [stack.enter_context(connected(server)) for _ in range(3)]
        takers = [Taker(connection, ["q"], 1) for connection in connections]
        old = {wait_until_idle(taker) for taker in takers}
        server.restart()
        with server.client() as client:
            assert client.exists(*(client.keys("redis_queue:idle:*") + client.keys("redis_queue:listener:*"))) == 2
        wait_until(
            lambda: all(map(drained, connections)) and not old & {taker.channel._fetch for taker in takers},
            description="new connections",
        )
        for taker in takers:
            wait_until_idle(taker)
        with connected(server) as producer:
            for number in range(6):
                publish(producer, number)
                wait_until(
                    lambda: all(map(drained, connections)) and number in [body for t in takers for body in t.got],  # noqa: B023
                    timeout=5,
                    description="the message",
                )
                for taker in takers:
                    taker.settle()


def test_messages_of_a_lost_reply_are_returned_in_order_on_the_next_connection(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    load_scripts(client)
    with FaultProxy(str(redis_server.socket)) as proxy, Connection(proxy.url) as connection:
        for number in range(5):
            publish(connection, number)
        taker = Taker(connection, ["q"], 3)
        proxy.drop_next_reply(matching=b"EVALSHA")
        with pytest.raises(connection.connection_errors):
            connection.drain_events(timeout=10)
        assert (client.llen("q"), client.hlen("unacked")) == (2, 3)
        assert taker.take(3) == [0, 1, 2]
        taker.settle()
        assert taker.take(5) == [0, 1, 2, 3, 4]
        taker.settle()
        assert not client.exists("q", "unacked", "unacked_index")
