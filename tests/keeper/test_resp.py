"""Connection: replies of a Redis, and what a hostile server may send instead."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from redis_queue.keeper import resp
from redis_queue.keeper.resp import Connection, ErrorReply, ProtocolError, Reply
from tests.support.servers import RedisServer

TIMEOUT = 0.3

RENEWED = b"*3\r\n$3\r\n1.5\r\n$0\r\n\r\n$4\r\nt\r\ng\r\n"

REPLIES: list[tuple[bytes, Reply]] = [
    (b"+OK\r\n", b"OK"),
    (b"$0\r\n\r\n", b""),
    (b"$6\r\na\r\n\0b\xff\r\n", b"a\r\n\0b\xff"),
    (b"*0\r\n", []),
    (RENEWED, [b"1.5", b"", b"t\r\ng"]),
]


class Ends:
    """Both ends of a connection: *connection* is the client's, *server* a plain socket."""

    def __init__(self, ours: socket.socket, theirs: socket.socket, timeout: float) -> None:
        self.connection = Connection(ours, timeout)
        self.server = theirs

    def exchange(self, replies: bytes, commands: int = 1, *, close: bool = True) -> list[Reply]:
        """Let the server send *replies* and close; return what the client read."""
        self.server.sendall(replies)
        if close:
            self.server.shutdown(socket.SHUT_WR)
        return self.connection.exchange(*[("PING",)] * commands)


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A new connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Ends(ours, theirs, TIMEOUT)


@pytest.mark.parametrize(("data", "reply"), REPLIES)
def test_reads_replies(ends: Ends, data: bytes, reply: Reply) -> None:
    assert ends.exchange(data) == [reply]


def test_reads_the_replies_of_several_commands(ends: Ends) -> None:
    assert ends.exchange(b"".join(data for data, _ in REPLIES), len(REPLIES)) == [reply for _, reply in REPLIES]


def test_packs_commands(ends: Ends) -> None:
    ends.server.sendall(b"+OK\r\n+OK\r\n")
    ends.connection.exchange(("ECHO", b"\xff\r\n", "\u00e9", 12), ("PING",))
    expected = b"*4\r\n$4\r\nECHO\r\n$3\r\n\xff\r\n\r\n$2\r\n\xc3\xa9\r\n$2\r\n12\r\n*1\r\n$4\r\nPING\r\n"
    assert ends.server.recv(1000) == expected


@pytest.mark.usefixtures("client")
def test_keeps_binary_values_of_a_redis(redis_server: RedisServer) -> None:
    value = bytes(range(256)) * 1000
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(redis_server.socket))
        connection = Connection(link, 5)
        assert connection.exchange(("SET", "key", value), ("GET", "key")) == [b"OK", value]


@pytest.mark.parametrize("data", [data for data, _ in REPLIES])
@pytest.mark.parametrize("end", ["closed", "silent"])
def test_refuses_a_reply_cut_at_any_byte(data: bytes, end: str) -> None:
    for size in range(len(data)):
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.raises(ConnectionResetError if end == "closed" else TimeoutError):
            Ends(ours, theirs, 0.01).exchange(data[:size], close=end == "closed")


def test_reads_a_reply_that_arrives_byte_by_byte(ends: Ends) -> None:
    ends.server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)

    def send() -> None:
        for byte in RENEWED:
            ends.server.sendall(bytes([byte]))

    thread = threading.Thread(target=send)
    thread.start()
    assert ends.connection.exchange(("PING",)) == [REPLIES[-1][1]]
    thread.join()


def test_error_replies_are_errors(ends: Ends) -> None:
    with pytest.raises(ErrorReply, match=r"^WRONGPASS no \ufffd$"):
        ends.exchange(b"-WRONGPASS no \xff\r\n", close=False)
    with pytest.raises(ErrorReply, match=r"^second$"):
        ends.exchange(b"+OK\r\n-ERR second\r\n", 2, close=False)


@pytest.mark.parametrize(
    "data",
    [
        b":1\r\n",
        b"_\r\n",
        b"%1\r\n+a\r\n+b\r\n",
        b">1\r\n+a\r\n",
        b"\r\n",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"$-1\r\n",
        b"$+1\r\na\r\n",
        b"$ 1\r\na\r\n",
        b"$1_0\r\n",
        b"$\r\n\r\n",
        b"$\xb2\r\n",
        b"$1\r\nabc\r\n",
        b"$16777217\r\n",
        b"$99999999999999999999\r\n",
        b"$" + b"9" * 10_000 + b"\r\n",
        b"*-1\r\n",
        b"*16385\r\n",
        b"*1000000000\r\n",
        b"*1\r\n*1\r\n$1\r\na\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n+OK\r\n",
        b"*2\r\n$1\r\na\r\n-ERR in an array\r\n",
        b"*1\r\n" * 5000,
    ],
)
def test_refuses_other_replies(ends: Ends, data: bytes) -> None:
    with pytest.raises(ProtocolError, match="unexpected reply: b") as error:
        ends.exchange(data)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("data", [b"+OK\r\n+OK\r\n", b"+OK\r\n-"])
def test_refuses_more_replies_than_commands(ends: Ends, data: bytes) -> None:
    assert ends.exchange(data) == [b"OK"]
    with pytest.raises(ProtocolError, match="unexpected data after a reply"):
        ends.connection.exchange(("PING",))


@pytest.mark.parametrize("start", [b"+", b"-", b"$", b"*2\r\n$"])
def test_refuses_an_endless_line(ends: Ends, start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resp, "MOST_BYTES", 1000)
    with pytest.raises(ProtocolError, match="longer than 1000 bytes"):
        ends.exchange(start + b"1" * 2000)


def test_refuses_many_strings_that_are_too_large_together(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resp, "MOST_BYTES", 1000)
    with pytest.raises(ProtocolError, match="longer than 1000 bytes"):
        ends.exchange(b"*100\r\n" + b"$90\r\n%b\r\n" % (b"a" * 90) * 100)


def test_ends_in_time_while_the_server_sends_one_byte_after_the_other(ends: Ends) -> None:
    ended = threading.Event()

    def send() -> None:
        ends.server.sendall(b"+")
        while not ended.wait(TIMEOUT / 10):
            ends.server.sendall(b"a")

    thread = threading.Thread(target=send)
    thread.start()
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        ends.connection.exchange(("PING",))
    assert time.monotonic() - started < 10 * TIMEOUT
    ended.set()
    thread.join()


def test_ends_in_time_if_the_server_reads_nothing(ends: Ends) -> None:
    with pytest.raises(TimeoutError):
        ends.connection.exchange(("ECHO", bytes(10_000_000)))
