"""The keeper's renewals on each kind of connection, and on a Redis that refuses, hangs or lies."""

from __future__ import annotations

import pickle
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
import redis
from kombu.transport.redis import Channel

from redis_queue.celery.kombu.connection import options_of
from redis_queue.errors import RedisQueueError
from redis_queue.keeper.renewal import TAGS, LeaseIndex, RedisOptions, Renewal, Renewer
from redis_queue.store import links
from tests.support.celery.brokers import connect
from tests.support.ports import HOST, free_port
from tests.support.proxy import FaultProxy
from tests.support.sentinel import SentinelSet
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

INDEX = LeaseIndex(b"unacked_index", b"lease_ends", 3.0, 7)

HELD = {"a": 1000.0}

# Older kombu does not know credential providers.
knows_providers = pytest.mark.skipif(
    not hasattr(Channel, "_process_credential_provider"), reason="this kombu has no credential providers"
)


def sent_options(url: str, **options: Any) -> RedisOptions:
    """Return how the keeper of a worker with this broker connects, as it has read it."""
    with connect(url, **options) as connection:
        found: RedisOptions = pickle.loads(pickle.dumps(options_of(connection.default_channel, INDEX.lease)))  # noqa: S301
        return found


@contextmanager
def renewer_of(options: RedisOptions | str) -> Iterator[Renewer]:
    """Yield the renewer of a keeper with these options, or of one whose worker has its broker at this URL."""
    found = sent_options(options) if isinstance(options, str) else options
    client = found.client()
    try:
        yield Renewer(client, INDEX)
    finally:
        link = links.link(client)
        assert isinstance(link, links.DirectLink)
        link.close()


def reason_of(renewer: Renewer) -> str:
    """Return what the worker logs about a failed renewal."""
    with pytest.raises(RedisQueueError) as error:
        renewer.renew(HELD)
    return str(error.value)


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
        with renewer_of(f"redis+socket://{redis_server.socket}") as renewer:
            began, _ = client.time()
            found = renewer.renew({**held, "theirs": 1000.0, "gone": 1.0})
            assert found.lost == ["theirs", "gone"]
            # Three calls, each at its own time.
            assert client.zcount("unacked_index", began, found.score) == len(held)
            assert client.zcount("lease_ends", began + 3, found.score + 4) == len(held)

    def test_logs_in_and_uses_a_database(self, server: RedisServer) -> None:
        url = url_at(server, 3)
        with redis.Redis.from_url(url) as client, renewer_of(url) as renewer:
            client.zadd("unacked_index", HELD)
            assert renewer.renew(HELD).lost == []

    def test_has_the_client_name(self, redis_server: RedisServer, client: redis.Redis) -> None:
        with renewer_of(f"redis+socket://{redis_server.socket}?client_name=shop&virtual_host=2") as renewer:
            renewer.renew(HELD)
            assert [row["db"] for row in client.client_list() if row["name"] == "shop"] == ["2"]

    def test_logs_in_as_a_user(self, server: RedisServer) -> None:
        with server.client() as client:
            allow(client)
            client.zadd("unacked_index", HELD)
            with renewer_of(url_at(server, login="shop:p:w")) as renewer:
                assert renewer.renew(HELD).lost == []
                assert "shop" in [row["user"] for row in client.client_list()]

    @pytest.mark.parametrize("option", ["ssl_cert_reqs=none", "ssl_ca_certs={ca}", "ssl_cert_reqs=CERT_REQUIRED"])
    def test_uses_tls(self, option: str) -> None:
        with RedisServer(tls=True) as server, server.client() as client:
            client.zadd("unacked_index", HELD)
            authority = str(server.directory / "ca.crt")
            url = f"rediss://{HOST}:{server.port}/0?{option.format(ca=authority)}"
            if "CERT_REQUIRED" in option:
                url += f"&ssl_ca_certs={authority}"
            options = sent_options(url)
            with renewer_of(options) as renewer:
                assert renewer.renew(HELD).lost == []
            if "none" not in option:
                with renewer_of(RedisOptions({**options.pool, "ssl_ca_certs": None})) as renewer:
                    assert "certificate verify failed" in reason_of(renewer)

    def test_timeouts_are_a_sixth_of_the_lease_or_shorter(self, redis_server: RedisServer) -> None:
        def timeouts(**options: float) -> tuple[float, float]:
            found = sent_options(f"redis+socket://{redis_server.socket}", transport_options=options).pool
            return found["socket_timeout"], found["socket_connect_timeout"]

        assert timeouts() == timeouts(socket_timeout=2.0) == (0.5, 0.5)
        assert timeouts(socket_timeout=0.1) == (0.1, 0.5)

    def test_uses_other_options_of_redis_py(self, redis_server: RedisServer, client: redis.Redis) -> None:
        client.zadd("unacked_index", HELD)
        with renewer_of(f"redis+socket://{redis_server.socket}?encoding=latin-1") as renewer:
            assert renewer.renew(HELD).lost == []

    @knows_providers
    def test_makes_a_credential_provider_that_is_named(self, redis_server: RedisServer, client: redis.Redis) -> None:
        client.zadd("unacked_index", HELD)
        # It holds a lock, which cannot be sent to another process.
        with renewer_of(f"redis+socket://{redis_server.socket}?credential_provider={__name__}.Provider") as renewer:
            assert renewer.renew(HELD).lost == []

    def test_uses_a_connection_class(self, redis_tcp_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Channel, "connection_class", OwnConnection)
        assert sent_options(redis_tcp_server.url).pool["connection_class"] is OwnConnection
        with redis.Redis.from_url(redis_tcp_server.url) as client, renewer_of(redis_tcp_server.url) as renewer:
            client.zadd("unacked_index", HELD)
            assert renewer.renew(HELD).lost == []

    @pytest.mark.matrix
    @pytest.mark.parametrize("options", [{}, {"sentinel_kwargs": {"socket_timeout": 100.0}}])
    def test_follows_a_failover_of_sentinels(self, options: dict[str, Any]) -> None:
        with SentinelSet() as sentinels, sentinels.client() as client:
            client.zadd("unacked_index", HELD)
            url = ";".join(f"sentinel://{host}:{port}" for host, port in sentinels.nodes)
            sent = sent_options(url, transport_options={"master_name": sentinels.master_name, **options})
            assert sent.sentinel is not None
            assert sent.sentinel["sentinel_kwargs"]["socket_timeout"] == 0.5
            with renewer_of(sent) as renewer:
                assert renewer.renew(HELD).lost == []
                sentinels.fail_over()
                found = wait_until(lambda: renewed(renewer), description="a renewal by the new primary")
                assert found.lost == []


def renewed(renewer: Renewer) -> Renewal | None:
    """Renew, and return the result if it succeeds."""
    try:
        return renewer.renew(HELD)
    except RedisQueueError:
        return None


def allow(client: redis.Redis, *rights: str) -> None:
    """Create the user shop, with all rights and then these."""
    commands = ["+@all", *rights]
    client.acl_setuser("shop", enabled=True, passwords=["+p:w"], commands=commands, keys=["*"], channels=["*"])


class Provider(redis.CredentialProvider):
    """A login of the user's own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def get_credentials(self) -> tuple[str, str]:
        return "default", "any"


class OwnConnection(redis.Connection):
    """A connection class of the user's own."""


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"password": "wrong"}, "Redis refused the login; check user and password ("),
            ({"username": "nobody"}, "Redis refused the login; check user and password ("),
            ({"password": None}, "Redis refused the login; check user and password ("),
            ({"db": 16}, "DB index is out of range"),
        ],
    )
    def test_login(self, server: RedisServer, options: dict[str, Any], reason: str) -> None:
        right = sent_options(url_at(server))
        with renewer_of(RedisOptions({**right.pool, **options})) as renewer:
            for _ in range(2):
                assert reason in reason_of(renewer)
        with renewer_of(right) as renewer:
            assert renewer.renew(HELD).lost == ["a"]

    def test_permissions(self, server: RedisServer) -> None:
        with server.client() as client:
            allow(client, "-eval")
            with renewer_of(url_at(server, login="shop:p:w")) as renewer:
                assert "redis-queue load-scripts" in reason_of(renewer)
                client.zadd("unacked_index", HELD)
                allow(client, "-zadd")
                assert "the Redis user lacks a permission" in reason_of(renewer)
                allow(client)
                assert renewer.renew(HELD).lost == []

    def test_keys_of_another_type(self, redis_server: RedisServer, client: redis.Redis) -> None:
        client.set("unacked_index", "text")
        with renewer_of(f"redis+socket://{redis_server.socket}") as renewer:
            assert "unacked_index is a string" in reason_of(renewer)
            client.delete("unacked_index")
            assert renewer.renew(HELD).lost == ["a"]

    def test_scripts_that_are_not_loaded_are_sent(self, redis_server: RedisServer, client: redis.Redis) -> None:
        with renewer_of(f"redis+socket://{redis_server.socket}") as renewer:
            for _ in range(2):
                client.script_flush()
                client.zadd("unacked_index", HELD)
                assert renewer.renew(HELD).lost == []

    def test_a_read_only_replica(self, server: RedisServer) -> None:
        with server.client() as client, renewer_of(url_at(server)) as renewer:
            client.replicaof(HOST, free_port())
            assert "connected to a read-only replica" in reason_of(renewer)
            client.replicaof("NO", "ONE")
            assert renewer.renew(HELD).lost == ["a"]


class TestFaults:
    def test_survives_a_restart(self, server: RedisServer) -> None:
        with renewer_of(url_at(server)) as renewer:
            renewer.renew({})
            server.restart()
            assert renewer.renew(HELD).lost == ["a"]
            server.kill()
            reason = reason_of(renewer)
            assert reason.startswith("Redis cannot be reached or did not answer in time")
            assert "Connection refused" in reason
            server.restart()
            assert renewer.renew(HELD).lost == ["a"]

    def test_uses_a_new_connection_if_one_is_silent(self, proxy: FaultProxy, client: redis.Redis) -> None:
        client.zadd("unacked_index", HELD)
        with renewer_of(proxy.url) as renewer:
            score = renewer.renew(HELD).score
            proxy.mute()
            assert renewer.renew({"a": score}).lost == []

    def test_reports_a_silent_server(self, proxy: FaultProxy) -> None:
        with renewer_of(proxy.url) as renewer:
            proxy.mode = "blackhole"
            for _ in range(2):
                assert "did not answer in time" in reason_of(renewer)
            proxy.mode = "pass"
            renewer.renew(HELD)

    @pytest.mark.parametrize("connected", [False, True])
    def test_survives_a_reply_cut_at_each_byte(
        self, proxy: FaultProxy, client: redis.Redis, *, connected: bool
    ) -> None:
        client.zadd("unacked_index", HELD)
        options = sent_options(proxy.url)
        with renewer_of(options) as renewer:
            renewer.renew(HELD)
        for size in range(len(b"*1\r\n$17\r\n1700000000.000007\r\n")):
            client.zadd("unacked_index", HELD)
            with renewer_of(options) as renewer:
                if connected:
                    renewer.renew({})
                proxy.cut_next_reply(matching=b"EVALSHA", after=size)
                # Redis has renewed it although the reply was lost.
                assert renewer.renew(HELD).lost == []
            assert proxy.pending_drops == 0

    @pytest.mark.parametrize(
        ("reply", "reason"),
        [
            (b"+QUEUED\r\n", "unexpected reply"),
            (b"$2\r\n17\r\n", "unexpected reply"),
            (b":1\r\n", "unexpected reply"),
            (b"*0\r\n", "unexpected reply"),
            (b"*1\r\n$1\r\na\r\n", "unexpected reply"),
            (b"*2\r\n$1\r\n1\r\n:1\r\n", "unexpected reply"),
            (b"*2\r\n$1\r\n1\r\n$1\r\n\xff\r\n", "unexpected reply"),
            (b"HTTP/1.1 400 Bad Request\r\n", "Protocol"),
            (b"-\r\n", ""),
        ],
    )
    def test_reports_replies_of_another_form(self, reply: bytes, reason: str) -> None:
        with answering(reply) as port:
            options = RedisOptions({"host": HOST, "port": port, "protocol": 2, "socket_timeout": 5.0})
            with renewer_of(options) as renewer:
                assert reason in reason_of(renewer)


@contextmanager
def answering(reply: bytes) -> Iterator[int]:
    """Yield the port of a server that answers a script, and whatever follows, with *reply*."""

    class Handler(socketserver.BaseRequestHandler):
        request: socket.socket

        def handle(self) -> None:
            while data := self.request.recv(65536):
                self.request.sendall(b"+OK\r\n" * data.count(b"SETINFO") or reply)

    with socketserver.ThreadingTCPServer((HOST, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
