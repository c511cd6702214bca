"""``python -m examples.orders`` loses no orders, and leaves no processes, keys and files."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from examples import limited, pipeline
from examples.orders import feed, server
from examples.orders.errors import UnusableError
from redis_queue import RedisQueue
from redis_queue.testing.binaries import ServerNotFoundError
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

MARK = "DEMO_TEST"
SHORT = ["--orders", "60", "--speed", "4"]


class Demo:
    """The demo as a user starts it, with its temporary folder inside *folder*."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        # Variables that must not affect the worker and the Redis of the demo.
        foreign = {"CELERY_BROKER_URL": "amqp://127.0.0.1:1", "CELERY_TIMEZONE": "Mars/Olympus"}
        self._env = {**os.environ, **foreign, MARK: self._mark, "REDIS_URL": url, "TMPDIR": str(folder)}

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = self._command(options)
        return subprocess.run(command, check=False, cwd=ROOT, env=self._env, capture_output=True, text=True)

    @contextlib.contextmanager
    def started(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """Start it, and kill it at the end of the block if it still runs."""
        pipe = subprocess.PIPE
        command = self._command(options)
        with subprocess.Popen(command, cwd=ROOT, env=self._env, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def survivors(self) -> list[str]:
        """Return the command lines of its processes that still run."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark and runs(process):
                    found.append(" ".join(process.cmdline()))
        return found

    @staticmethod
    def _command(options: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "examples.orders", *options]


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        # It ended between the two calls.
        return False


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    assert any(text in line for line in process.stdout), f"it ended without {text!r}"


def row(output: str, name: str) -> list[str]:
    """Return the cells of the table's row *name*."""
    found = re.search(rf"│ {name} +│ +(\S.*?) +│ +(\S.*?) +│", output)
    assert found, output
    return list(found.groups())


@pytest.mark.timeout(180)
def test_a_killed_consumer_and_a_restarted_worker_lose_nothing(server: RedisServer, tmp_path: Path) -> None:
    lines = sum(len(order.lines) for order in feed.read()[:60])
    demo = Demo(tmp_path, server.url)

    done = demo.run(*SHORT)

    assert done.returncode == 0, done.stdout + done.stderr
    assert row(done.stdout, "sent") == ["120", str(lines)]
    assert row(done.stdout, "executed") == ["120", str(lines)]
    assert row(done.stdout, "lost") == ["0", "0"]
    assert row(done.stdout, "doubled")[0] == "0"
    assert re.search(r"killed +consumer 1 by SIGKILL, in the middle of R-\S+.*; [1-9]\d* lines came back", done.stdout)
    assert re.search(r"restarted +worker 1 by SIGTERM", done.stdout)
    assert done.stderr == ""
    assert demo.survivors() == []
    assert list(tmp_path.iterdir()) == []
    with server.client() as client:
        assert client.keys("*") == []


@pytest.mark.parametrize(
    ("number", "moment", "code"),
    [
        (signal.SIGINT, "killed consumer 1", 130),
        pytest.param(signal.SIGTERM, "starting a Celery worker", 143, marks=pytest.mark.thorough),
        pytest.param(signal.SIGHUP, "starting a Celery worker", 129, marks=pytest.mark.thorough),
        (signal.SIGKILL, "feeding 400 orders", -9),
    ],
)
def test_a_signal_leaves_no_process_no_key_and_no_folder(
    number: signal.Signals, moment: str, code: int, server: RedisServer, tmp_path: Path
) -> None:
    demo = Demo(tmp_path, server.url)
    with demo.started() as process, server.client() as client:
        wait_for(process, moment)

        process.send_signal(number)

        assert process.wait(timeout=60) == code
        wait_until(lambda: not demo.survivors(), description="all processes to end")
        assert client.keys("*") == []
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_the_redis_that_the_demo_started(number: signal.Signals) -> None:
    # A unix socket's path is short, so that its folder cannot be pytest's.
    demo = Demo(Path("/tmp"))
    with demo.started() as process:
        wait_for(process, "starting a Celery worker")
        # Redis overwrites its environment with its title, so survivors() does not find it.
        [redis] = [
            child for child in psutil.Process(process.pid).children() if "redis.sock" in " ".join(child.cmdline())
        ]

        process.send_signal(number)

        process.wait(timeout=60)
        wait_until(lambda: not runs(redis) and not demo.survivors(), description="all processes to end")


def test_a_worker_crash_fails_the_run_and_keeps_its_log(server: RedisServer, tmp_path: Path) -> None:
    demo = Demo(tmp_path, server.url)
    with demo.started() as process, server.client() as client:
        wait_for(process, "orders fed 0/400")
        [worker] = [child for child in psutil.Process(process.pid).children() if "celery" in child.cmdline()]
        worker.kill()

        _, errors = process.communicate(timeout=60)

        assert process.returncode == 1
        assert "worker 1 ended with code -9" in errors
        [folder] = tmp_path.iterdir()
        assert f"the logs are in {folder}" in errors
        assert (folder / "worker-1.log").is_file()
        wait_until(lambda: not demo.survivors(), description="all processes to end")
        assert client.keys("*") == []


def test_a_prefix_that_is_in_use_is_refused(server: RedisServer, tmp_path: Path) -> None:
    with server.client() as client:
        client.set("shop:orders:executed", "precious")

        done = Demo(tmp_path, server.url).run("--prefix", "shop")

        assert done.returncode == 2
        assert "prefix 'shop' is in use (key 'shop:orders:executed')" in done.stderr
        assert client.keys("*") == [b"shop:orders:executed"]


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("redis://:secret@127.0.0.1:1/0", [], "cannot be reached"),
        ("redis+cluster://:secret@127.0.0.1:1", [], "one server as its broker"),
        ("", ["--orders", "0"], "0 is not positive"),
        ("", ["--prefix", "a*"], "give letters, digits"),
    ],
)
def test_invalid_options_give_a_clear_error(url: str, options: list[str], message: str, tmp_path: Path) -> None:
    demo = Demo(tmp_path, url)

    done = demo.run(*options)

    assert done.returncode == 2
    assert message in done.stderr
    assert "secret" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert demo.survivors() == []
    assert list(tmp_path.iterdir()) == []


def test_without_a_server_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> Path:
        raise ServerNotFoundError("pip install a server")

    monkeypatch.setattr("redis_queue.testing.server.find_server", find)

    with pytest.raises(UnusableError, match="pip install a server, or set REDIS_URL"), server.own_server():
        pass


def test_the_orders_in_the_file_are_plausible() -> None:
    orders = feed.read()

    assert len({order.id for order in orders}) == len(orders) == 400
    for order in orders:
        assert 0 < order.remind_after < order.cancel_after <= 20
        assert 2 <= len({sku for sku, _ in order.lines}) == len(order.lines) <= 4
        assert all(quantity > 0 for _, quantity in order.lines)
        assert float(order.amount) > 0


# The small examples work.


def test_the_rate_limit_of_an_api_is_kept(client: redis.Redis, redis_url: str) -> None:
    api = limited.main(redis_url, count=15)
    assert sorted(api.taken) == list(range(15))
    assert api.refused > 0
    stats = RedisQueue("limited", client).stats()
    assert (stats.ready, stats.delayed, stats.in_flight, stats.dead) == (0, 0, 0, 0)


def test_a_file_is_processed_in_batches(client: redis.Redis, redis_url: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("order,customer\n" + "".join(f"{number},c{number % 3}\n" for number in range(1001)))
    assert pipeline.main(redis_url, file) == {"c0": 334, "c1": 334, "c2": 333}
    stats = RedisQueue("pipeline", client).stats()
    assert (stats.ready, stats.in_flight, stats.acked) == (0, 0, 1001)


def test_the_batch_of_a_killed_worker_is_processed_by_the_next_one(client: redis.Redis) -> None:
    queue = RedisQueue("pipeline", client, lease=0.05)
    pipeline.feed(queue, [{"customer": "c1"}] * 150)
    assert len(queue.get_many(100, block=False)) == 100
    wait_until(lambda: queue.put_back().returned, description="the lease to end")
    assert pipeline.work(queue, "customer") == {"c1": 150}
