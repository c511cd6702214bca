"""The servers and faults that other tests rely on do what they promise."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from redis_queue.testing.server import ServerStartError
from tests.support import servers
from tests.support.paths import ROOT
from tests.support.ports import HOST, free_port
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer, client_options
from tests.support.wait import wait_until

SERVER_UNTIL_KILLED = """
from tests.support.servers import RedisServer
import threading
server = RedisServer(tcp=True)
server.start()
print(server.pid, server.directory, flush=True)
threading.Event().wait()
"""


class TestRedisServer:
    def test_speaks_tls_with_an_authority_of_its_own(self) -> None:
        with RedisServer(kind="path", tls=True) as server:
            with server.client() as client:
                assert client.ping()
            with (
                redis.Redis(port=server.port, ssl=True, **client_options()) as stranger,
                pytest.raises(redis.ConnectionError, match="verify"),
            ):
                stranger.ping()

    def test_tries_another_port_when_somebody_took_the_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as taken:
            taken.bind((HOST, 0))
            taken.listen()
            ports = iter([taken.getsockname()[1], free_port()])
            monkeypatch.setattr(servers, "free_port", ports.__next__)
            with RedisServer(tcp=True) as server, server.client() as client:
                assert client.ping()

    def test_a_bad_option_fails_with_the_servers_own_words(self) -> None:
        with pytest.raises(ServerStartError, match="no-such-option"):
            RedisServer("--no-such-option", "1").start()

    def test_dies_with_a_killed_test_process(self) -> None:
        command = [sys.executable, "-c", SERVER_UNTIL_KILLED]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            pid, directory = process.stdout.readline().split()
            process.send_signal(signal.SIGKILL)
        wait_until(lambda: not Path(directory).exists(), description="the guard to clean up")
        wait_until(lambda: has_ended(int(pid)), description="the server to end")


def has_ended(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.address) as proxy:
        yield proxy
    assert not [thread for thread in threading.enumerate() if thread.name == "fault-proxy"]


@pytest.fixture
def through(proxy: FaultProxy) -> Iterator[redis.Redis]:
    """A client that is connected through the proxy and gives up soon."""
    with redis.Redis.from_url(proxy.url, **client_options(socket_timeout=0.2)) as through:
        through.ping()
        yield through


class TestFaultProxy:
    def test_passes_and_counts(self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis) -> None:
        sent, received = proxy.bytes_to_server, proxy.bytes_to_client
        through.set("key", b"x" * 100_000)
        assert client.strlen("key") == 100_000
        assert proxy.bytes_to_server - sent > 100_000
        assert proxy.bytes_to_client - received == len(b"+OK\r\n")
        assert (proxy.connections, proxy.open_connections) == (1, 1)
        through.close()
        wait_until(lambda: proxy.open_connections == 0, description="the proxy to notice the end")

    def test_drop_next_reply_executes_but_raises(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis
    ) -> None:
        proxy.drop_next_reply(2)
        for _ in range(2):  # the second one on a new connection, whose handshake passes
            with pytest.raises(redis.ConnectionError):
                through.incr("counter")
        assert client.get("counter") == b"2"
        assert proxy.pending_drops == 0
        assert through.incr("counter") == 3

    def test_drop_next_reply_waits_for_what_it_is_to_match(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis
    ) -> None:
        proxy.drop_next_reply(matching=b"chosen")
        assert through.incr("other") == 1
        assert proxy.pending_drops == 1
        with pytest.raises(redis.ConnectionError):
            through.incr("chosen")
        assert client.get("chosen") == b"1"

    def test_cut_next_reply_passes_a_part_of_it(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis
    ) -> None:
        for after, seen in ((None, b"+O"), (1, b"+"), (99, b"+OK\r\n")):
            proxy.cut_next_reply(after=after)
            with socket.create_connection(proxy.address, timeout=5) as raw:
                raw.sendall(b"SET key %d\r\n" % len(seen))
                assert raw.recv(100) == seen
                with pytest.raises(ConnectionResetError):
                    raw.recv(100)
            assert client.get("key") == b"%d" % len(seen)
        assert proxy.pending_drops == 0
        assert through.ping()

    def test_cut_next_request_keeps_it_from_the_server(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis
    ) -> None:
        proxy.cut_next_request(2)
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                through.incr("counter")
        assert client.get("counter") is None
        assert through.incr("counter") == 1

    def test_cut_next_request_passes_what_stands_before(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis
    ) -> None:
        proxy.cut_next_request(before=b"second")
        both: Any = through.pipeline(transaction=False).incr("first")
        with pytest.raises(redis.ConnectionError):
            both.incr("second").execute()
        wait_until(lambda: proxy.open_connections == 0, description="the server to close the connection")
        assert client.mget("first", "second") == [b"1", None]

    def test_hold_next_request_lets_it_arrive_late(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis
    ) -> None:
        proxy.hold_next_request(matching=b"INCR")
        with pytest.raises(redis.TimeoutError):
            through.incr("counter")
        assert through.get("counter") is None
        proxy.release()
        wait_until(lambda: client.get("counter") == b"1", description="the held request to arrive")

    def test_drop_replies_executes_and_never_answers(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis
    ) -> None:
        proxy.mode = "drop_replies"
        with pytest.raises(redis.TimeoutError):
            through.incr("counter")
        assert client.get("counter") == b"1"
        proxy.mode = "pass"
        assert through.incr("counter") == 2

    def test_a_connection_that_lost_a_reply_never_passes_a_later_one(
        self, client: redis.Redis, proxy: FaultProxy
    ) -> None:
        with socket.create_connection(proxy.address, timeout=5) as raw:
            proxy.mode = "drop_replies"
            raw.sendall(b"INCR counter\r\n")
            wait_until(lambda: proxy.bytes_dropped, description="the reply to be dropped")
            assert client.get("counter") == b"1"
            proxy.mode = "pass"
            raw.sendall(b"INCR counter\r\n")
            with pytest.raises(ConnectionResetError):
                raw.recv(100)

    def test_blackhole_holds_requests_back_until_it_ends(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis
    ) -> None:
        proxy.mode = "blackhole"
        with pytest.raises(redis.TimeoutError):
            through.incr("counter")
        with pytest.raises(redis.TimeoutError):  # a new connection
            through.incr("counter")
        assert client.get("counter") is None
        proxy.mode = "pass"
        wait_until(lambda: client.get("counter") == b"1", description="the held back request to arrive")

    def test_muted_connections_stay_silent_and_new_ones_pass(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis
    ) -> None:
        assert through.ping()
        proxy.mute()
        with pytest.raises(redis.TimeoutError):
            through.incr("counter")
        assert through.incr("counter") == 1  # a new connection
        assert client.get("counter") == b"1"

    def test_latency_is_added_to_each_round_trip(self, proxy: FaultProxy, through: redis.Redis) -> None:
        proxy.latency = 0.1
        begin = time.monotonic()
        through.ping()
        assert time.monotonic() - begin >= 0.1

    def test_cut_resets_all_connections_and_welcomes_new_ones(self, proxy: FaultProxy, through: redis.Redis) -> None:
        with socket.create_connection(proxy.address, timeout=5) as raw:
            wait_until(lambda: proxy.open_connections == 2, description="both connections")
            proxy.cut()
            assert proxy.open_connections == 0
            with pytest.raises(ConnectionResetError):
                raw.recv(100)
        assert through.ping()
