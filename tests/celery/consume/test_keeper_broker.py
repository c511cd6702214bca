"""Broker: renewals without redis-py, on each kind of connection, and on a Redis that refuses, hangs or lies."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import quote

import pytest
import redis
from kombu.transport.redis import Channel

from redis_queue.celery.leases.keeper_process import _reason
from redis_queue.keeper.broker import Broker
from redis_queue.keeper.greeting import pack
from redis_queue.keeper.lines import LENGTH
from redis_queue.keeper.redis_py import KombuBroker, LeaseIndex
from redis_queue.keeper.renewal import TAGS, Renewal, RenewalError, Renewing
from tests.support.celery.brokers import connect
from tests.support.ports import HOST, free_port
from tests.support.proxy import FaultProxy
from tests.support.sentinel import SentinelSet
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

INDEX = LeaseIndex(b"unacked_index", b"lease_ends", 3.0, 7)

HELD = {"a": 1000.0}

# Older kombu does not know credential providers.
PROVIDERS = [f"credential_provider={__name__}.Provider"] if hasattr(Channel, "_process_credential_provider") else []


def greeting_of(url: str, index: LeaseIndex = INDEX, **options: Any) -> dict[str, Any]:
    """Return what the worker of a broker sends to its keeper first."""
    with connect(url, **options) as connection:
        found: dict[str, Any] = json.loads(pack(connection, index)[LENGTH.size :])
        return found


@contextmanager
def opened(greeting: dict[str, Any]) -> Iterator[Broker]:
    """Yield the broker of a keeper that got this greeting, and close it."""
    assert "pickle" not in greeting
    broker = Broker(greeting)
    try:
        yield broker
    finally:
        broker.close()


def broker_of(url: str, **options: Any) -> AbstractContextManager[Broker]:
    """Return the broker of a keeper whose worker has its broker at *url*."""
    return opened(greeting_of(url, **options))


def reason_of(broker: Renewing) -> str:
    """Return what the worker logs about a failed renewal."""
    with pytest.raises(RenewalError) as error:
        broker.renew(HELD)
    return _reason({"away": str(error.value), "source": error.value.source})


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server with a password, on a TCP port."""
    with RedisServer(tcp=True, password="p:@ w\u00e9") as server:
        yield server


def url_at(server: RedisServer, database: int = 0, login: str = ":p:@ w\u00e9") -> str:
    """Return kombu's URL for a database."""
    user, _, password = login.partition(":")
    return f"redis://{user}:{quote(password, safe='')}@localhost:{server.port}/{database}"


class TestConnections:
    def test_renews_and_finds_lost_leases(self, redis_server: RedisServer, client: redis.Redis) -> None:
        held = {f"tag-{number}\n": 1000.0 for number in range(2 * TAGS + 5)}
        client.zadd("unacked_index", {**held, "theirs": 2000.0})
        with broker_of(f"redis+socket://{redis_server.socket}") as broker:
            began, _ = client.time()
            found = broker.renew({**held, "theirs": 1000.0, "gone": 1.0})
            assert found.lost == ["theirs", "gone"]
            # Three calls, each at its own time.
            assert client.zcount("unacked_index", began, found.score) == len(held)
            assert client.zcount("lease_ends", began + 3, found.score + 4) == len(held)

    def test_logs_in_and_uses_a_database(self, server: RedisServer) -> None:
        url = url_at(server, 3)
        with redis.Redis.from_url(url) as client, broker_of(url) as broker:
            client.zadd("unacked_index", HELD)
            assert broker.renew(HELD).lost == []

    def test_has_the_client_name(self, redis_server: RedisServer, client: redis.Redis) -> None:
        with broker_of(f"redis+socket://{redis_server.socket}?client_name=shop&virtual_host=2") as broker:
            broker.renew(HELD)
            assert [row["db"] for row in client.client_list() if row["name"] == "shop"] == ["2"]

    def test_logs_in_as_a_user(self, server: RedisServer) -> None:
        with server.client() as client:
            allow(client)
            client.zadd("unacked_index", HELD)
            with broker_of(url_at(server, login="shop:p:w")) as broker:
                assert broker.renew(HELD).lost == []
                assert "shop" in [row["user"] for row in client.client_list()]

    @pytest.mark.parametrize("option", ["ssl_cert_reqs=none", "ssl_ca_certs={ca}", "ssl_cert_reqs=CERT_REQUIRED"])
    def test_uses_tls(self, option: str) -> None:
        with RedisServer(tls=True) as server, server.client() as client:
            client.zadd("unacked_index", HELD)
            authority = str(server.directory / "ca.crt")
            url = f"rediss://{HOST}:{server.port}/0?{option.format(ca=authority)}"
            if "CERT_REQUIRED" in option:
                url += f"&ssl_ca_certs={authority}"
            greeting = greeting_of(url)
            with opened(greeting) as broker:
                assert broker.renew(HELD).lost == []
            if "none" not in option:
                greeting["server"]["tls"]["cafile"] = None
                assert "certificate verify failed" in reason_of(Broker(greeting))

    def test_timeouts_are_a_sixth_of_the_lease_or_shorter(self, redis_server: RedisServer) -> None:
        def timeouts(**options: float) -> tuple[float, float]:
            found = greeting_of(f"redis+socket://{redis_server.socket}", transport_options=options)["server"]
            return found["timeout"], found["connect_timeout"]

        assert timeouts() == timeouts(socket_timeout=2.0) == (0.5, 0.5)
        assert timeouts(socket_timeout=0.1) == (0.1, 0.5)

    @pytest.mark.parametrize("query", ["encoding=latin-1", *PROVIDERS])
    def test_what_only_redis_py_knows_is_left_to_it(
        self, query: str, redis_server: RedisServer, client: redis.Redis
    ) -> None:
        client.zadd("unacked_index", HELD)
        greeting = greeting_of(f"redis+socket://{redis_server.socket}?{query}")
        assert sorted(greeting) == ["lease", "pickle", "signature"]
        broker = KombuBroker(bytes.fromhex(greeting["pickle"]))
        assert broker.renew(HELD).lost == []
        client.set("unacked_index", "text")
        assert "unacked_index is a string" in reason_of(broker)
        broker._connection.release()

    def test_a_connection_class_is_left_to_redis_py(
        self, redis_tcp_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Channel, "connection_class", OwnConnection)
        assert "pickle" in greeting_of(redis_tcp_server.url)

    @pytest.mark.matrix
    def test_sentinels_are_left_to_redis_py_which_follows_a_failover(self) -> None:
        with SentinelSet() as sentinels, sentinels.client() as client:
            client.zadd("unacked_index", HELD)
            url = ";".join(f"sentinel://{host}:{port}" for host, port in sentinels.nodes)
            options = {"master_name": sentinels.master_name}
            broker = KombuBroker(bytes.fromhex(greeting_of(url, transport_options=options)["pickle"]))
            assert broker.renew(HELD).lost == []
            sentinels.fail_over()
            assert wait_until(lambda: renewed(broker), description="a renewal by the new primary").lost == []
            broker._connection.release()


def renewed(broker: Renewing) -> Renewal | None:
    """Renew, and return the result if it succeeds."""
    try:
        return broker.renew(HELD)
    except RenewalError:
        return None


def allow(client: redis.Redis, *rights: str) -> None:
    """Create the user shop, with all rights and then these."""
    commands = ["+@all", *rights]
    client.acl_setuser("shop", enabled=True, passwords=["+p:w"], commands=commands, keys=["*"], channels=["*"])


class Provider(redis.CredentialProvider):
    """A login of the user's own."""

    def get_credentials(self) -> tuple[str, str]:
        return "default", "any"


class OwnConnection(redis.Connection):
    """A connection class of the user's own."""


class TestRefusals:
    @pytest.mark.parametrize(
        ("login", "reason"),
        [
            ([("AUTH", "wrong")], "Redis refused the login; check user and password (WRONGPASS"),
            ([("AUTH", "nobody", "wrong")], "Redis refused the login; check user and password (WRONGPASS"),
            ([("CLIENT", "SETNAME", "a")], "Redis refused the login; check user and password (NOAUTH"),
            ([("AUTH", "p:@ w\u00e9"), ("SELECT", 16)], "DB index is out of range"),
            ([("AUTH", "p:@ w\u00e9"), ("CLIENT", "SETNAME", "a b")], "Client names cannot contain spaces"),
        ],
    )
    def test_login(self, server: RedisServer, login: list[tuple[str, ...]], reason: str) -> None:
        greeting = greeting_of(url_at(server))
        right = greeting["server"]["login"]
        greeting["server"]["login"] = login
        with opened(greeting) as broker:
            for _ in range(2):
                assert reason in reason_of(broker)
            greeting["server"]["login"] = right
            assert broker.renew(HELD).lost == ["a"]

    def test_permissions(self, server: RedisServer) -> None:
        with server.client() as client:
            allow(client, "-eval")
            with broker_of(url_at(server, login="shop:p:w")) as broker:
                assert "redis-queue load-scripts" in reason_of(broker)
                client.zadd("unacked_index", HELD)
                allow(client, "-zadd")
                assert "the Redis user lacks a permission" in reason_of(broker)
                allow(client)
                assert broker.renew(HELD).lost == []

    def test_keys_of_another_type(self, redis_server: RedisServer, client: redis.Redis) -> None:
        client.set("unacked_index", "text")
        with broker_of(f"redis+socket://{redis_server.socket}") as broker:
            assert "WRONGTYPE" in reason_of(broker)
            client.delete("unacked_index")
            assert broker.renew(HELD).lost == ["a"]

    def test_scripts_that_are_not_loaded_are_sent(self, redis_server: RedisServer, client: redis.Redis) -> None:
        with broker_of(f"redis+socket://{redis_server.socket}") as broker:
            for _ in range(2):
                client.script_flush()
                client.zadd("unacked_index", HELD)
                assert broker.renew(HELD).lost == []

    def test_a_read_only_replica(self, server: RedisServer) -> None:
        with server.client() as client, broker_of(url_at(server)) as broker:
            client.replicaof(HOST, free_port())
            assert "connected to a read-only replica" in reason_of(broker)
            client.replicaof("NO", "ONE")
            assert broker.renew(HELD).lost == ["a"]


class TestFaults:
    def test_survives_a_restart(self, server: RedisServer) -> None:
        with broker_of(url_at(server)) as broker:
            broker.renew({})
            server.restart()
            assert broker.renew(HELD).lost == ["a"]
            server.kill()
            reason = reason_of(broker)
            assert reason.startswith("Redis cannot be reached or did not answer in time (localhost:")
            assert "Connection refused" in reason
            server.restart()
            assert broker.renew(HELD).lost == ["a"]

    def test_uses_a_new_connection_if_one_is_silent(self, proxy: FaultProxy, client: redis.Redis) -> None:
        client.zadd("unacked_index", HELD)
        with broker_of(proxy.url) as broker:
            score = broker.renew(HELD).score
            proxy.mute()
            assert broker.renew({"a": score}).lost == []

    def test_reports_a_silent_server(self, proxy: FaultProxy) -> None:
        with broker_of(proxy.url) as broker:
            proxy.mode = "blackhole"
            for _ in range(2):
                assert "did not answer in time" in reason_of(broker)
            proxy.mode = "pass"
            broker.renew(HELD)

    @pytest.mark.parametrize("connected", [False, True])
    def test_survives_a_reply_cut_at_each_byte(
        self, proxy: FaultProxy, client: redis.Redis, *, connected: bool
    ) -> None:
        client.zadd("unacked_index", HELD)
        greeting = greeting_of(proxy.url)
        with opened(greeting) as broker:
            broker.renew(HELD)
        for size in range(len(b"*1\r\n$17\r\n1700000000.000007\r\n")):
            client.zadd("unacked_index", HELD)
            with opened(greeting) as broker:
                if connected:
                    broker.renew({})
                proxy.cut_next_reply(matching=b"EVALSHA", after=size)
                if not connected:
                    assert "Redis cannot be reached" in reason_of(broker)
                # Redis has renewed it although the reply was lost.
                assert broker.renew(HELD).lost == []
            assert proxy.pending_drops == 0

    @pytest.mark.parametrize(
        ("reply", "reason"),
        [
            (b"+QUEUED\r\n", "unexpected reply"),
            (b"$2\r\n17\r\n", "unexpected reply"),
            (b":1\r\n", "unexpected reply"),
            (b"*0\r\n", "not enough values"),
            (b"*1\r\n$1\r\na\r\n", "could not convert string to float"),
            (b"*2\r\n$1\r\n1\r\n$1\r\n\xff\r\n", "can't decode byte"),
            (b"-NOSCRIPT a\r\n-NOSCRIPT a\r\n", "unexpected data"),
            (b"-\r\n", ""),
        ],
    )
    def test_reports_replies_of_another_form(self, redis_server: RedisServer, reply: bytes, reason: str) -> None:
        greeting = greeting_of(f"redis+socket://{redis_server.socket}")
        with answering(reply) as port:
            greeting["server"].update(path=None, host=HOST, port=port, options=[])
            assert reason in reason_of(Broker(greeting))


@contextmanager
def answering(reply: bytes) -> Iterator[int]:
    """Yield the port of a server that answers whatever it reads with *reply*."""

    class Handler(socketserver.BaseRequestHandler):
        request: socket.socket

        def handle(self) -> None:
            while self.request.recv(65536):
                self.request.sendall(reply)

    with socketserver.ThreadingTCPServer((HOST, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
