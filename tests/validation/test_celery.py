"""``redis-queue validate --celery`` passes with a sound app, fails with one that loses tasks, touches nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from celery import Celery

from redis_queue.celery import DurableTasks
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(240)

APP = """
import json, os, pathlib
from celery import Celery
from redis_queue.celery import DurableTasks

app = Celery("shop", broker=os.environ["BROKER"])
app.conf.update(json.loads(os.environ["CONF"]))
if "redis_queue_url" in app.conf:
    DurableTasks(app)

@app.task(name="shop.sell")
def sell():
    pathlib.Path("sold").touch()
"""


SLOT = b"{redis_queue:delay:scheduled:0}:slot:"


class Shop:
    """A user's app in a folder of its own, with a task that waits and one that is due."""

    def __init__(self, folder: Path, broker: str, store: str, **conf: Any) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(APP)
        self.conf = {"worker_concurrency": 2, "redis_queue_url": store, **conf}
        self.environment = {**os.environ, "BROKER": broker, "PYTHONPATH": str(ROOT)}
        self.app = Celery("shop", broker=broker, set_as_current=False)
        self.app.conf.redis_queue_url = store
        DurableTasks(self.app)

    def send(self, queue: str) -> None:
        self.app.send_task("shop.sell", queue=queue)
        self.app.send_task("shop.sell", queue=queue, countdown=0.001)

    def start(self, *options: str, program: tuple[str, ...] = ("-m", "redis_queue")) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *program, "validate", "--celery", *options],
            cwd=self.folder,
            env={**self.environment, "CONF": json.dumps(self.conf)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def report(self, *options: str, **start: Any) -> tuple[int, dict[str, Any]]:
        process = self.start("--messages", "100", "--lease", "2", "--json", *options, **start)
        out, error = process.communicate(timeout=230)
        assert "Traceback" not in error
        return process.returncode, json.loads(out)


def contents(client: redis.Redis) -> dict[bytes, bytes | None]:
    # The user's last call of a script is remembered for a while.
    return {key: client.dump(key) for key in client.scan_iter() if not key.startswith(SLOT)}


@pytest.fixture
def broker(redis_server: RedisServer) -> str:
    return f"redis+socket://{redis_server.socket}"


def test_kills_lose_no_task_and_nothing_of_the_user_is_touched(
    tmp_path: Path, broker: str, redis_url: str, client: redis.Redis
) -> None:
    shop = Shop(tmp_path, broker, redis_url)
    shop.send("celery")
    before = contents(client)
    code, report = shop.report("-A", "shop")

    assert (code, report["passed"]) == (0, True), report
    assert (report["handled"], report["lost"], report["doubled"], report["early"]) == (100, 0, 0, 0)
    assert report["kills"] == 3
    assert report["redelivered"] > 0
    assert 0 <= report["late_p50_s"] <= report["late_max_s"]
    assert contents(client) == before
    assert not (tmp_path / "sold").exists()


def test_tasks_of_rabbitmq_come_back_too(
    tmp_path: Path, rabbitmq_url: str, redis_url: str, client: redis.Redis
) -> None:
    queue, beat = f"shop-{time.time_ns()}", {"often": {"task": "shop.sell", "schedule": 0.1}}
    # Each of these would send messages from a worker of the user.
    conf = {"task_default_queue": queue, "redis_queue_schedules": True, "beat_schedule": beat}
    shop = Shop(tmp_path, rabbitmq_url, redis_url, **conf)
    shop.send(queue)
    before = contents(client)
    with shop.app.connection_for_write() as connection:
        try:
            code, report = shop.report(program=("-m", "celery", "-A", "shop", "redis-queue"))

            assert (code, report["passed"], report["handled"]) == (0, True, 100), report
            assert report["redelivered"] > 0
            assert contents(client) == before
            assert connection.default_channel.queue_declare(queue, passive=True).message_count == 1
        finally:
            connection.default_channel.queue_delete(queue)
            connection.default_channel.exchange_delete(queue)


@pytest.mark.parametrize(
    "conf",
    [{"task_acks_late": False}, pytest.param({"redis_queue_url": None}, marks=pytest.mark.thorough, id="stock Celery")],
)
def test_an_app_that_loses_tasks_fails(
    conf: dict[str, Any], tmp_path: Path, broker: str, redis_url: str, client: redis.Redis
) -> None:
    shop = Shop(tmp_path, broker, redis_url, **conf)
    shop.conf = {name: value for name, value in shop.conf.items() if value is not None}
    code, report = shop.report("-A", "shop")

    assert (code, report["passed"]) == (1, False)
    assert report["lost"] > 0
    assert "redelivered_within_s" not in report
    assert client.keys() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(
    number: int, tmp_path: Path, broker: str, redis_url: str, client: redis.Redis
) -> None:
    with Shop(tmp_path, broker, redis_url).start("-A", "shop") as process:
        (key,) = wait_until(lambda: client.keys("*:unacked"), timeout=90, description="the worker to work")
        (prefix,) = re.findall("redis_queue_validate_[0-9a-f]{8}", key.decode())
        process.send_signal(number)

        assert process.wait(60) == 130
        assert process.stderr is not None
        assert process.stderr.read() == "interrupted\n"
    assert client.keys() == []
    assert not any(prefix in " ".join(other.info["cmdline"] or ()) for other in psutil.process_iter(["cmdline"]))


@pytest.mark.parametrize(
    ("options", "conf", "words"),
    [
        ("-A nowhere", {}, "cannot load the app 'nowhere'"),
        ("-A shop --kill", {}, "--kill cannot be used with --celery"),
        ("-A shop --lease 1", {}, "lease=1.0"),
        ("", {}, "needs a Celery app"),
        ("-A shop", {"broker_url": "memory://"}, "the broker is memory"),
        ("-A shop", {"task_always_eager": True}, "task_always_eager=True"),
        ("-A shop", {"worker_pool": "none"}, "the worker has ended: ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_validated_is_refused(
    options: str, conf: dict[str, Any], words: str, tmp_path: Path, redis_server: RedisServer
) -> None:
    broker = f"redis+socket://{redis_server.socket}"
    process = Shop(tmp_path, broker, redis_server.url, **conf).start(*options.split())
    _, error = process.communicate(timeout=60)

    assert process.returncode == 2
    assert words in error
    assert "Traceback" not in error
