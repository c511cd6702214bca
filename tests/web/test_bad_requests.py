"""Raw requests that no browser sends, to a dashboard in a separate process."""

from __future__ import annotations

import contextlib
import re
import socket
import time

import pytest
import redis

from tests.support.web.contents import Serve, Served, everything, read_all

HOST = b"Host: localhost\r\nConnection: close\r\n"


@pytest.fixture(scope="module")
def served(serve: Serve, redis_url: str) -> Served:
    return serve("--allow-write", url=redis_url)


def send(served: Served, *parts: bytes) -> bytes:
    """Send *parts* and return the complete answer."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                connection.sendall(part)
        with contextlib.suppress(ConnectionResetError):
            return read_all(connection, 10)
    return b""


def status(answer: bytes) -> int:
    """Return the status of the first answer."""
    found = re.match(rb"HTTP/1\.[01] (\d{3}) ", answer)
    assert found is not None, answer[:200]
    return int(found[1])


def refused(answer: bytes, *codes: int) -> bool:
    """Return whether the request was refused; a client that is still sending may only see a closed connection."""
    return not answer or status(answer) in codes


def get(served: Served, target: bytes, method: bytes = b"GET") -> bytes:
    """Request *target* unchanged."""
    return send(served, method + b" " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n")


@pytest.fixture(autouse=True)
def _nothing_changes(served: Served, filled: redis.Redis) -> object:
    """Check after each test that Redis is unchanged and that the dashboard answers and logged no exception."""
    before = everything(filled)
    yield
    assert everything(filled) == before
    assert status(get(served, b"/queues")) == 200
    assert "Traceback" not in served.output


class TestMethods:
    @pytest.mark.parametrize("method", [b"FOO", b"TRACE", b"CONNECT", b"PUT", b"DELETE", b"PATCH", b"get", b"X" * 3000])
    def test_unknown_ones(self, method: bytes, served: Served) -> None:
        assert status(get(served, b"/queues", method)) in (400, 403, 405)

    def test_head_has_the_headers_of_get(self, served: Served) -> None:
        for path in (b"/queues", b"/", b"/nosuch", b"/static/style.css"):
            head, _, body = get(served, path, b"HEAD").partition(b"\r\n\r\n")
            full = get(served, path).partition(b"\r\n\r\n")[0]
            names = [line.split(b":")[0] for line in head.split(b"\r\n")[1:]]
            assert body == b""
            assert status(head) == status(full)
            assert names == [line.split(b":")[0] for line in full.split(b"\r\n")[1:]]

    def test_options_lists_the_methods(self, served: Served) -> None:
        answer = get(served, b"/actions/dead", b"OPTIONS")
        assert status(answer) == 200
        assert re.search(rb"\r\nAllow: (OPTIONS, POST|POST, OPTIONS)\r\n", answer)
        assert answer.endswith(b"\r\n\r\n")


class TestHost:
    @pytest.mark.parametrize("line", [b"", b"Host:\r\n", b"Host: evil.example\r\n", b"Host: localhost\x00\r\n"])
    @pytest.mark.parametrize("version", [b"1.0", b"1.1"])
    def test_missing_or_forged(self, version: bytes, line: bytes, served: Served) -> None:
        answer = send(served, b"GET /queues HTTP/" + version + b"\r\n" + line + b"Connection: close\r\n\r\n")
        assert status(answer) == 400
        assert b"orders" not in answer

    def test_an_address_in_the_request_line(self, served: Served) -> None:
        assert b"evil" not in get(served, b"http://evil.example/queues").split(b"\r\n\r\n")[0]

    def test_forwarded_headers_are_ignored(self, served: Served) -> None:
        forged = (
            b"X-Forwarded-Host: evil.example\r\nX-Forwarded-Prefix: //evil.example\r\nForwarded: host=evil.example\r\n"
        )
        answer = send(served, b"GET /queues HTTP/1.1\r\n" + HOST + forged + b"\r\n")
        assert (status(answer), b"evil" in answer) == (200, False)


class TestSizes:
    def test_a_header_that_is_too_large(self, served: Served) -> None:
        assert refused(send(served, b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 17_000 + b"\r\n\r\n"), 431)

    def test_an_address_that_is_too_long(self, served: Served) -> None:
        assert refused(get(served, b"/?" + b"x" * 17_000), 414, 431)

    @pytest.mark.parametrize("length", [b"1048577", b"99999999999999999999", b"-1", b"x", b"1e3", b""])
    def test_a_body_with_an_invalid_length(self, length: bytes, served: Served) -> None:
        head = b"POST /act HTTP/1.1\r\n" + HOST + b"Content-Length: " + length + b"\r\n\r\n"
        assert refused(send(served, head, b"x" * 1000), 400, 403, 413)

    def test_an_endless_body_in_chunks(self, served: Served) -> None:
        head = b"POST /act HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
        answer = send(served, head, *[b"10000\r\n" + b"x" * 65536 + b"\r\n"] * 20)
        assert refused(answer, 413)

    def test_a_form_of_many_fields(self, served: Served) -> None:
        form = b"&".join(b"row=%d" % number for number in range(90_000))
        head = b"POST /act HTTP/1.1\r\n" + HOST + b"Content-Type: application/x-www-form-urlencoded\r\n"
        assert status(send(served, head + b"Content-Length: %d\r\n\r\n" % len(form), form)) == 403

    def test_two_lengths(self, served: Served) -> None:
        head = b"POST /act HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = send(served, head, b"0\r\n\r\nGET /queues HTTP/1.1\r\n" + HOST + b"\r\n")
        assert answer.count(b"HTTP/1.1 200") == 0


class TestSlowness:
    def test_unfinished_requests_do_not_block_other_clients(self, served: Served) -> None:
        with contextlib.ExitStack() as open_ones:
            for number in range(60):
                slow = open_ones.enter_context(socket.create_connection(("127.0.0.1", served.port)))
                start = b"GET / HTTP/1.1\r\nHost: loc" if number % 2 else b"POST /act HTTP/1.1\r\n" + HOST
                slow.sendall(start + (b"" if number % 2 else b"Content-Length: 1000\r\n\r\nhalf"))
            start = time.monotonic()
            assert status(get(served, b"/queues")) == 200
            assert time.monotonic() - start < 5

    def test_clients_that_do_not_read_do_not_block_others(self, served: Served) -> None:
        with contextlib.ExitStack() as open_ones:
            for _ in range(20):
                deaf = open_ones.enter_context(socket.socket())
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
                deaf.connect(("127.0.0.1", served.port))
                deaf.sendall(b"GET /scheduled?body=1 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
            assert status(get(served, b"/queues")) == 200


class TestTargets:
    @pytest.mark.parametrize(
        "target",
        [
            b"/static/..%2fapp.py",
            b"/static/..%2f..%2f..%2f..%2fetc%2fpasswd",
            b"/static/%2e%2e/settings.py",
            b"/static/../settings.py",
            b"/static/..\\settings.py",
            b"/static//etc/passwd",
            b"/static/",
            b"/templates/base.html",
            b"/..%2f",
            b"/%00",
            b"/%ff%fe",
            b"/\xff",
            b"//evil.example/",
            b"//evil.example/%2e%2e",
            b"/queues/",
            b"/entry/../queue",
            b"/%0d%0aSet-Cookie:%20zq1=1",
        ],
    )
    def test_invalid_paths(self, target: bytes, served: Served) -> None:
        head, _, body = get(served, target).partition(b"\r\n\r\n")
        assert status(head) in (400, 404)
        assert b"\r\nLocation:" not in head
        assert b"zq1=1" not in head
        assert b"root:" not in body
        assert b"import" not in body

    @pytest.mark.parametrize(
        "target",
        [
            b"/?page=-1&per_page=1e9&days=99999999",
            b"/scheduled?limit=-1",
            b"/scheduled?limit=1000000000",
            b"/scheduled?limit=1e9",
            b"/scheduled?limit=101",
            b"/scheduled?limit=0",
            b"/scheduled?limit=%D9%A3",
            b"/scheduled?limit=5&limit=6",
            b"/scheduled?task=a&task=b",
            b"/scheduled?due_before=99999999999d",
            b"/scheduled?due_before=tomorrow",
            b"/scheduled?due_before=9999-12-31T23:59-14:00",
            b"/scheduled?due_after=2030-01-01T00:00",
            b"/scheduled?due_after=NaN",
            b"/scheduled?after=x",
            b"/scheduled?after=OTk5OTk5OTk5OTk5OTk5OTk5OTk6eA==",
            b"/scheduled?task=" + b"x" * 301,
            b"/scheduled?task=%00",
            b"/scheduled?body=yes",
            b"/dead?after=-1.0",
            b"/dead?after=99999999.0",
            b"/dead?limit=500",
            b"/queue?kind=queue&name=orders&offset=-1",
            b"/queue?kind=queue&name=orders&offset=99999999999",
            b"/queue?kind=stream&name=orders",
            b"/queues?sort=size",
            b"/queues?sort=ready&sort=name",
            b"/?sort=__class__",
            b"/forecast?span=century",
            b"/forecast?span=day&buckets=1000000",
            b"/entry?kind=queue&kind=delay&id=x",
            b"/audit?limit=10000000",
            b"/workers?timeout=99999",
            b"/doctor?fix=1",
        ],
    )
    def test_invalid_parameters(self, target: bytes, served: Served) -> None:
        answer = get(served, target)
        assert status(answer) == 400
        assert re.search(rb'<p class="problem">[^<]{10,}</p>', answer)

    @pytest.mark.parametrize(
        "target", [b"/scheduled?task=%ff%fe", b"/scheduled?task=\xff", b"/scheduled?%ff=1", b"/entry?id=%ff"]
    )
    def test_parameters_with_invalid_utf_8(self, target: bytes, served: Served) -> None:
        assert status(get(served, target)) in (200, 400, 404)

    def test_a_redirect_cannot_be_split_into_headers(self, served: Served) -> None:
        page = get(served, b"/scheduled")
        cookie = re.search(rb"Set-Cookie: ([^;]+)", page)
        token = re.search(rb'name="token" value="([^"]+)"', page)
        assert cookie
        assert token
        form = b"kind=queue&verb=pause&name=x%0d%0aSet-Cookie:%20zq1=1&token=" + token[1]
        head = b"POST /actions/queue HTTP/1.1\r\n" + HOST + b"Cookie: " + cookie[1] + b"\r\n"
        head += b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n" % len(form)
        answer = send(served, head, form)
        assert status(answer) == 400
        assert b"zq1=1" not in answer.split(b"\r\n\r\n")[0]


@pytest.mark.parametrize(
    "line", [b"", b"\x16\x03\x01\x02\x00\x01\x00", b"GET", b"\xff" * 500, b"* * *", b" / HTTP/1.1"]
)
def test_requests_that_are_not_http(line: bytes, served: Served) -> None:
    answer = send(served, line + b"\r\n" + HOST + b"\r\n")
    assert b" 200 " not in answer[:20]
