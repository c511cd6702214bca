"""Faults of Redis and of connections under atomic fetch: a worker notices them at once, and no message is stranded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import redis
from kombu.connection import Connection

from redis_queue.celery.fetch import fetch as fetches
from redis_queue.celery.fetch.fetch import Fetch
from redis_queue.celery.kombu import connection as kombu_connection
from redis_queue.store.script_files import load
from redis_queue.store.scripts import load_scripts
from tests.support.celery.fetching import Taker, connected, drained, publish, publish_all, wait_until_idle
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.store.server_states import STATES
from tests.support.wait import wait_until


@contextmanager
def idle(server: RedisServer) -> Iterator[tuple[Any, Taker, Fetch]]:
    """Connect a consumer that has looked for messages and found none."""
    with connected(server) as connection:
        taker = Taker(connection, ["q"], 4)
        yield connection, taker, wait_until_idle(taker)
        with suppress(redis.RedisError):
            taker.channel.close()


def kill_command_connection(client: redis.Redis) -> None:
    """Close the connection on which the only consumer fetches, from the side of Redis."""
    (found,) = (row for row in client.client_list() if row["cmd"] == "exists")
    client.client_kill_filter(_id=found["id"])


class TestIdleWorker:
    def test_notices_at_once_that_its_command_connection_was_closed(
        self, redis_server: RedisServer, client: redis.Redis
    ) -> None:
        with idle(redis_server) as (connection, _, _):
            kill_command_connection(client)
            # Before, the closed socket was readable for ever: the event loop turned without a pause until the next
            # look.
            with pytest.raises(redis.ConnectionError):
                connection.drain_events(timeout=5)

    def test_connects_again_if_its_wake_ups_were_closed_while_it_asked(
        self, redis_server: RedisServer, client: redis.Redis
    ) -> None:
        with idle(redis_server) as (connection, taker, fetch):
            client.client_kill_filter(_type="pubsub")
            fetch.is_due = True
            with pytest.raises(connection.connection_errors):  # noqa: PT012 - either call may notice it
                taker.channel.fetch_if_needed()
                fetch.commands.wait()

    @pytest.mark.parametrize("state", ["read-only", "cut off", "busy", "unsaved", "without replicas"])
    def test_connects_again_while_redis_refuses_writes(self, server: RedisServer, state: str) -> None:
        with idle(server) as (connection, taker, fetch):
            fetch.is_due = True
            with STATES[state].enter(server), pytest.raises(connection.connection_errors):  # noqa: PT012
                taker.channel.fetch_if_needed()
                fetch.commands.wait()


def test_a_key_of_another_type_moves_no_message(redis_server: RedisServer, client: redis.Redis) -> None:
    with idle(redis_server) as (connection, taker, fetch):
        assert fetch._line is not None
        for key in (*fetch._line, "unacked", "unacked_index"):
            client.delete(*fetch._line, "unacked", "unacked_index")
            client.lpush(key, "of another program")
            publish(connection, "x")
            lists = client.lrange("q", 0, -1)
            with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                taker.take(1)
            assert client.lrange("q", 0, -1) == lists
            client.delete(key)
            assert not client.exists("unacked", "unacked_index")
        assert sorted(taker.take(4)) == ["x"] * 4


def test_an_unreadable_message_that_cannot_be_put_aside_strands_no_other(
    redis_server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(tag: str, item: bytes) -> None:
        raise redis.ConnectionError(f"cannot put {item!r} aside ({tag})")

    with connected(redis_server) as connection:
        client.rpush("q", "unreadable")
        publish(connection, "x")
        client.rpush("q", "unreadable")
        taker = Taker(connection, ["q"], 4)
        monkeypatch.setattr(taker.leases, "put_aside", refuse)
        with pytest.raises(redis.ConnectionError, match="unreadable"):
            taker.take(1)
        assert taker.take(1) == ["x"]
        # Nobody renews the leases of the others, so a sweep finds them.
        assert list(taker.leases.held) == [taker.messages[0].delivery_tag]


@pytest.mark.parametrize("after", [*range(0, 40, 3), 100, 300])
def test_a_cut_reply_ends_the_connection_and_its_message_stays_recorded(
    redis_server: RedisServer, client: redis.Redis, after: int
) -> None:
    client.script_load(load("broker/fetch").source)
    with FaultProxy(str(redis_server.socket)) as proxy, Connection(proxy.url) as connection:
        publish(connection, "x")
        taker = Taker(connection, ["q"], 1)
        proxy.cut_next_reply(matching=b"EVALSHA", after=after)
        taker.channel.fetch_if_needed()
        first = taker.channel._fetch

        wait_until(
            lambda: drained(connection) and taker.channel._fetch is not first,
            timeout=5,
            description="the lost connection to be noticed",
        )
        assert taker.got == []
        assert client.hlen("unacked") == client.zcard("unacked_index") == 1


@pytest.mark.parametrize("after", range(4))
def test_a_cut_wake_up_is_an_error(redis_server: RedisServer, client: redis.Redis, after: int) -> None:
    assert client.dbsize() == 0
    with FaultProxy(str(redis_server.socket)) as proxy, Connection(proxy.url) as connection:
        fetch = wait_until_idle(Taker(connection, ["q"], 1))
        proxy.cut_next_reply(matching=b"PING", after=after)
        fetch.wakeups.ping()
        with pytest.raises(connection.connection_errors):
            connection.drain_events(timeout=5)


def test_redis_forgets_its_scripts_at_any_time(redis_server: RedisServer, client: redis.Redis) -> None:
    with connected(redis_server) as connection:
        taker = Taker(connection, ["q"], 4)
        for number in range(20):
            client.script_flush()
            publish(connection, number)
            client.script_flush()
            assert taker.take(number + 1)[-1] == number
            client.script_flush()
            taker.settle()
        assert not client.exists("unacked", "unacked_index")


def test_a_worker_may_consume_any_number_of_queues(redis_server: RedisServer, client: redis.Redis) -> None:
    queues = [f"q{number}" for number in range(2_500)]
    with connected(redis_server) as connection:
        for number in (0, 2_499):
            publish(connection, number, queues[number])
        taker = Taker(connection, queues, 4)
        assert sorted(taker.take(2)) == [0, 2_499]
        taker.settle()
    assert not client.exists("unacked", "unacked_index")


class TestSilentConnection:
    """One of the two connections receives nothing more; looks are half a second apart, as is the timeout."""

    @pytest.fixture
    def proxy(
        self, redis_server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[FaultProxy]:
        assert client.dbsize() == 0
        monkeypatch.setattr(kombu_connection, "MIN_TIMEOUT", 0.5)
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
                description="the silent connection to be replaced",
            )
            publish(producer, "y")
            assert taker.take(2) == ["x", "y"]

    def test_of_commands_is_replaced(self, proxy: FaultProxy) -> None:
        with self.connect(proxy) as connection:
            taker = Taker(connection, ["q"], 4)
            fetch = wait_until_idle(taker)
            proxy.mute_next(matching=load("broker/fetch").sha.encode())
            wait_until(
                lambda: drained(connection) and taker.channel._fetch is not fetch,
                description="the silent connection to be replaced",
            )
            wait_until_idle(taker)
            publish(connection, "x")
            assert taker.take(1) == ["x"]


def test_idle_workers_are_woken_after_a_restart_that_kept_the_keys_of_their_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetches, "CHECK_INTERVAL", 600.0)
    monkeypatch.setattr(fetches, "MAX_LOOK", 600.0)
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
        publish_all(connection, 5)
        taker = Taker(connection, ["q"], 3)
        proxy.drop_next_reply(matching=load("broker/fetch").sha.encode())
        with pytest.raises(connection.connection_errors):
            connection.drain_events(timeout=10)
        assert (client.llen("q"), client.hlen("unacked")) == (2, 3)
        assert taker.take(3) == [0, 1, 2]
        taker.settle()
        assert taker.take(5) == [0, 1, 2, 3, 4]
        taker.settle()
        assert not client.exists("q", "unacked", "unacked_index")
