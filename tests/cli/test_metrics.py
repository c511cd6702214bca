"""``redis-queue metrics`` in separate processes, as Prometheus would scrape them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import redis
from celery import Celery

from redis_queue import RedisQueue
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.leases.leases import Counters
from redis_queue.cli import metrics
from redis_queue.monitor.model import Series, Tally
from redis_queue.monitor.report import Reports
from tests.support.cli.commands import Run
from tests.support.cli.terminal import terminal
from tests.support.ports import HOST
from tests.support.servers import RedisServer
from tests.support.wait import wait_until


@contextmanager
def serving(*arguments: str, url: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command on a free port; yield the process and the printed address."""
    command = [sys.executable, "-m", "redis_queue", "metrics", "--port", "0", *arguments]
    environment = {**os.environ, "REDIS_QUEUE_URL": url}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.fullmatch(r"metrics at (http://127\.0\.0\.1:\d+/metrics)\n", line)
            assert found, line + process.stderr.read()
            yield process, found[1]
        finally:
            process.kill()


def read(address: str) -> str:
    with urlopen(address, timeout=20) as reply:  # noqa: S310 - an address of this test
        assert reply.status == 200
        assert reply.headers["Content-Type"].startswith("text/plain")
        return str(reply.read().decode())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_a_signal_and_survives_an_outage_of_redis(number: signal.Signals) -> None:
    with RedisServer() as server, server.client() as client:
        RedisQueue("orders", client).put("x")
        with serving(url=server.url) as (process, address):
            assert 'redis_queue_ready{kind="queue",queue="orders"} 1.0' in read(address)
            if number is signal.SIGTERM:
                server.kill()
                assert "redis_queue_up 0.0" in read(address)
                assert "redis_queue_ready{" not in read(address)
                server.restart()
                wait_until(lambda: "redis_queue_up 1.0" in read(address), description="Redis to be reachable again")
            process.send_signal(number)
            assert process.wait(10) == 0


def test_once_prints_and_ends(run: Run, client: redis.Redis) -> None:
    RedisQueue("orders", client).put("x")
    done = run("metrics", "--once")
    assert done.exit_code == 0
    assert 'redis_queue_ready{kind="queue",queue="orders"} 1.0' in done.stdout
    assert "redis_queue_leases" not in done.stdout


def test_a_terminal_gets_no_control_characters(redis_server: RedisServer, client: redis.Redis) -> None:
    Reports(client, "redis_queue").write(tallies={Series("shop\x1b[2J", "q\x1b[2J"): Tally(1)})
    with terminal("metrics", "--once", "--url", redis_server.url) as shown:
        assert shown.end() == 0
        assert "redis_queue_up 1.0" in shown.printed
        assert "shop\\x1b[2J" in shown.printed
        assert "\x1b" not in shown.printed


def test_an_app_has_its_leases_too(run_in_app: Run, app: Celery, client: redis.Redis) -> None:
    with app.connection() as connection:
        Counters(client_of(connection.default_channel), "").add("lost", 7)
    done = run_in_app("metrics", "--once")
    assert "redis_queue_leases_lost_total 7.0" in done.stdout


def test_an_unreachable_redis_is_a_metric_and_not_an_error(run: Run) -> None:
    done = run("metrics", "--once", "--url", f"redis://{HOST}:1/0")
    assert (done.exit_code, "redis_queue_up 0.0" in done.stdout) == (0, True)


def test_a_port_in_use_is_a_one_line_error(run: Run, client: redis.Redis) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        done = run("metrics", "--port", str(port), "--bind", HOST)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Error: cannot listen on {HOST}:{port}: ")


def test_a_hanging_redis_is_reported_before_the_scrape_times_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REPLY_TIMEOUT", 0.2)
    with RedisServer() as server:
        server.pause()
        began = time.monotonic()
        done = run("metrics", "--once", "--url", server.url)
    assert "redis_queue_up 0.0" in done.stdout
    assert time.monotonic() - began < 8


@pytest.mark.parametrize("bind", ["no such host", "203.0.113.1", "\x1b[2J", "a" * 300])
def test_an_invalid_address_is_a_one_line_error(run: Run, client: redis.Redis, bind: str) -> None:
    done = run("metrics", "--port", "0", "--bind", bind)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: cannot listen on ")
    assert "\x1b" not in line


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_an_invalid_port_is_refused(run: Run, port: str) -> None:
    assert run("metrics", "--port", port).exit_code == 2


def test_without_the_extra_the_error_names_it(run: Run, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "redis_queue.operate.metrics", raising=False)
    done = run("metrics", "--once")
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: metrics need prometheus_client")
    assert line.endswith("pip install 'celery-redis-queue[metrics]'")


def test_pages_of_other_sites_cannot_read_them(client: redis.Redis, redis_url: str) -> None:
    """A host name that an attacker resolves to this machine (DNS rebinding) is refused."""
    with serving("--host", "metrics.example.org", url=redis_url) as (_, address):
        for host in ("metrics.example.org", "10.1.2.3:8056"):
            with urlopen(Request(address, headers={"Host": host}), timeout=20) as reply:  # noqa: S310
                assert reply.status == 200
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(address, headers={"Host": "evil.example"}), timeout=20)  # noqa: S310
        with refused.value as answer:
            assert (answer.code, b"redis_queue_up" in answer.read()) == (400, False)


def test_unfinished_requests_do_not_block_prometheus(client: redis.Redis, redis_url: str) -> None:
    with serving(url=redis_url) as (process, address), contextlib.ExitStack() as ends:
        port = int(address.split(":")[2].partition("/")[0])
        for _ in range(120):
            ends.enter_context(socket.create_connection((HOST, port))).sendall(b"GET /metrics HTTP/1.1\r\nHost: l")
        assert "redis_queue_up 1.0" in read(address)
        # Otherwise each connection would have a thread.
        assert len(os.listdir(f"/proc/{process.pid}/task")) < 40  # noqa: PTH208
