"""Removing redis_queue as its page says: a stock worker runs what waited, and the pattern deletes the other keys."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis

from redis_queue import RedisQueue
from tests.docs.blocks import DOCS
from tests.docs.reader import ShopApp
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

PAGE = (DOCS / "how-to" / "uninstall.md").read_text("utf-8")

STOCK = """
import redis
from celery import Celery

app = Celery("shop", broker="{url}", backend="{url}")


def run(word):
    redis.Redis.from_url("{url}").rpush("ran", word)


note = app.task(name="shop.note")(run)
once = app.task(name="shop.once")(run)
limited = app.task(name="shop.limited")(run)
"""
DURABLE = """
from redis_queue.celery import DurableTasks

app.conf.redis_queue_unique = {"shop.once": {"key": "{word}"}}
app.conf.redis_queue_flow = {"shop.limited": {"limit": 1}}
durable = DurableTasks(app)
"""
SEND = """
from shop import durable, limited, note, once

note.delay("sent")
note.apply_async(("delayed",), countdown=3600)
once.apply_async(("unique",), countdown=3600)
durable.flow.pause("shop.limited")
limited.delay("paused")
durable.schedules.put("nightly", "every 3600 s", "shop.note", args=("nightly",))
"""
SOON = """
from shop import durable

for task in durable.list():
    durable.reschedule(task.id, countdown=5)
"""


class Version(ShopApp):
    """A directory with one version of the shop."""

    def __init__(self, directory: Path, source: str) -> None:
        super().__init__(directory)
        directory.mkdir()
        (directory / "shop.py").write_text(source)

    def output_of(self, *arguments: str) -> str:
        with self.celery(*arguments) as process:
            assert process.wait() == 0, process.output
            return process.output

    def run(self, source: str) -> None:
        variables = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}."}
        subprocess.run([sys.executable, "-c", source], cwd=self.directory, env=variables, check=True, timeout=60)


def ran(client: redis.Redis) -> list[str]:
    found: Any = client.lrange("ran", 0, -1)
    return sorted(word.decode() for word in found)


def test_removing_loses_no_task_and_leaves_no_key(server: RedisServer, tmp_path: Path) -> None:
    stock = STOCK.format(url=server.url)
    before, after = Version(tmp_path / "with", stock + DURABLE), Version(tmp_path / "without", stock)
    with server.client() as client:
        with before.worker("one").ready() as worker:
            before.run(SEND)
            wait_until(lambda: ran(client) == ["sent"], description="the task that is due")
            worker.finish()
        RedisQueue("orders", client).put("mine")

        before.run(SOON)
        dry = before.output_of("redis-queue", "release-all", "--dry-run")
        done = before.output_of("redis-queue", "release-all")
        with after.worker("stock").ready():
            wait_until(lambda: len(ran(client)) >= 4, description="the tasks that waited")

        assert "2 would be released, and 1 of flows; 1 schedules would be sent no more" in dry
        assert "1 of flows; 0 stay, 0 dead letters and 1 schedules" in done
        assert ran(client) == ["delayed", "paused", "sent", "unique"]
        pattern = re.search(r"--scan --pattern '([^']+)'", PAGE)
        assert pattern
        client.delete(*client.scan_iter(match=pattern[1], count=1000))
        left = {key.decode() for key in client.scan_iter(count=1000)}
    assert "ran" in left
    assert not [key for key in left if "redis_queue" in key]
