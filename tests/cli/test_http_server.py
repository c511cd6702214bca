"""The server of dashboard and metrics: clients with unfinished requests do not block other clients."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from waitress import wasyncore

from redis_queue.cli.http_server import ClientLimits, Connection, create
from redis_queue.operate.addresses import is_own_host, network
from tests.support.ports import HOST
from tests.support.wait import wait_until

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG = 3600.0

UNFINISHED: Mapping[str, bytes] = {
    "nothing": b"",
    "half a line": b"GET / HT",
    "half a head": b"GET / HTTP/1.1\r\nHost: loc",
    "half a body": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf",
    "half a chunk": b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n100\r\nhalf",
}


def hello(environment: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"hello"]


class Site:
    def __init__(self, limits: ClientLimits, app: Any = hello) -> None:
        self.server = create(app, HOST, 0, limits)
        self.port = int(self.server.effective_port)
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        sockets = self.server._map
        while not self.over.is_set():
            wasyncore.loop(timeout=0.02, use_poll=True, map=sockets, count=1)
        wasyncore.close_all(sockets)
        self.server.task_dispatcher.shutdown()

    def open(self, source: str = HOST) -> socket.socket:
        return socket.create_connection((HOST, self.port), timeout=20, source_address=(source, 0))

    def connections(self) -> int:
        return sum(isinstance(one, Connection) for one in list(self.server._map.values()))


@contextlib.contextmanager
def serving(limits: ClientLimits, app: Any = hello) -> Iterator[Site]:
    site = Site(limits, app)
    try:
        yield site
    finally:
        site.over.set()
        site.thread.join()


def answered(connection: socket.socket) -> bool:
    """Send a request; return whether the answer is complete."""
    connection.sendall(REQUEST)
    found = b""
    while not found.endswith(b"hello"):
        part = connection.recv(65536)
        if not part:
            return False
        found += part
    return found.startswith(b"HTTP/1.1 200")


def is_closed(connection: socket.socket) -> bool:
    """Tell without blocking whether the server closed the connection."""
    connection.setblocking(False)
    try:
        return connection.recv(65536) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        connection.settimeout(20)


def test_unfinished_requests_do_not_block_other_clients() -> None:
    """More unfinished requests than allowed from one address: other addresses and the same one are still served."""
    limits = ClientLimits(head=LONG, request=LONG, connections=40, per_address=20)
    with serving(limits) as site, contextlib.ExitStack() as ends:
        parts = list(UNFINISHED.values())
        opened = [ends.enter_context(site.open()) for _ in range(100)]
        for number, connection in enumerate(opened):
            with contextlib.suppress(ConnectionError):
                connection.sendall(parts[number % len(parts)])
        assert answered(ends.enter_context(site.open("127.0.0.2")))
        assert answered(ends.enter_context(site.open()))
        # The newest connections stay, so the address is not locked out.
        wait_until(lambda: site.connections() <= 21, description="the oldest connections to be closed")


def test_many_addresses_do_not_block_other_clients() -> None:
    limits = ClientLimits(head=LONG, request=LONG, connections=20, per_address=5)
    with serving(limits) as site, contextlib.ExitStack() as ends:
        for number in range(80):
            ends.enter_context(site.open(f"127.0.1.{number // 5 + 1}"))
        assert answered(ends.enter_context(site.open("127.0.0.2")))
        wait_until(lambda: site.connections() <= 20, description="the oldest connections to be closed")


@pytest.mark.parametrize(
    ("start", "more"),
    [*((start, b"x") for start in UNFINISHED.values()), (b"", b"\r\n\r\n")],
    ids=[*UNFINISHED, "empty lines"],
)
def test_what_ends_no_request_does_not_keep_a_connection_open(start: bytes, more: bytes) -> None:
    with serving(ClientLimits(head=0.2, request=0.2)) as site, site.open() as slow:
        slow.sendall(start)

        def is_cut() -> bool:
            with contextlib.suppress(ConnectionError):
                slow.sendall(more)
                return is_closed(slow)
            return True

        wait_until(is_cut, description="the connection to be closed")
        with site.open() as other:
            assert answered(other)


def test_a_client_that_does_not_read_its_answer_is_disconnected() -> None:
    def much(environment: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"x" * 8_000_000]

    with serving(ClientLimits(head=LONG, answer=0.2), much) as site, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.connect((HOST, site.port))
        deaf.sendall(REQUEST)
        wait_until(lambda: site.connections() == 1, description="the connection")
        wait_until(lambda: site.connections() == 0, description="the server to close the connection")


def test_a_request_in_progress_is_not_cut() -> None:
    """The time of the application is not limited; the next request on the same connection has its own limits."""
    entered, go_on = threading.Event(), threading.Event()

    def patient(environment: dict[str, Any], start_response: Any) -> list[bytes]:
        entered.set()
        assert go_on.wait(20)
        return hello(environment, start_response)

    limits = ClientLimits(head=0.2, request=0.2, answer=0.2, per_address=1)
    with serving(limits, patient) as site, site.open() as connection:
        connection.sendall(REQUEST)
        assert entered.wait(20)
        # The server closes a connection beyond the limit instead: it has checked its limits by then.
        with site.open() as other:
            wait_until(lambda: is_closed(other), description="the second connection to be closed")
        go_on.set()
        assert b"hello" in connection.recv(65536) + connection.recv(65536)


def test_a_connection_can_be_reused() -> None:
    with serving(ClientLimits(per_address=1)) as site, site.open() as connection:
        for _ in range(3):
            assert answered(connection)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", ""),
        ("no address", "no address"),
    ],
)
def test_an_ipv6_client_counts_by_its_network(address: str, expected: str) -> None:
    assert network(address) == expected


@pytest.mark.parametrize(
    ("header", "is_own"),
    [
        ("localhost", True),
        ("LOCALHOST:8056", True),
        ("127.0.0.1:8056", True),
        ("10.1.2.3", True),
        ("[::1]:8056", True),
        ("metrics.example.org:8056", True),
        ("Metrics.Example.org", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("metrics.example.org.evil.example", False),
        ("[evil.example]", False),
        ("metrics.example.org@evil.example", False),
        ("metrics.example.org\n", False),
        ("metrics.example.org:", False),
        ("", False),
    ],
)
def test_accepted_hosts(header: str, is_own: bool) -> None:
    assert is_own_host(header, {"metrics.example.org"}) is is_own
