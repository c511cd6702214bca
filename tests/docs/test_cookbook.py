"""Each recipe of the cookbook keeps its promise: the page is one module `shop`, whose workers are real."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta, timezone
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import _state

from redis_queue import CancelOutcome
from redis_queue.testing import Timeline
from tests.docs.blocks import DOCS
from tests.docs.reader import ShopApp
from tests.docs.run_blocks import URL, runnable
from tests.support.celery.brokers import close_results
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

PAGE = DOCS / "cookbook.md"

OBSERVED = """
import redis
from celery.signals import task_postrun, task_prerun

# What the test sees; and short times, so that a second run would come soon.
redis_of_test = redis.Redis.from_url("{url}")
app.conf.broker_transport_options = {{"visibility_timeout": 1, "unacked_restore_interval": 1}}
app.conf.redis_queue_task_lease = 2


@task_prerun.connect(weak=False)
def began(task, args, **_):
    redis_of_test.rpush("began", f"{{task.name}} {{args[0] if args else ''}}")
    redis_of_test.blpop("go", 40)


@task_postrun.connect(weak=False)
def ended(task, args, **_):
    redis_of_test.rpush("ended", f"{{task.name}} {{args[0] if args else ''}}")
"""


class Shop(ShopApp):
    """The app of the page, and what its workers began and ended; each task waits for `go()` in between."""

    def __init__(self, module: ModuleType, client: redis.Redis, directory: Path) -> None:
        super().__init__(directory)
        self.code: Any = module
        self.client = client

    def go(self, count: int = 1) -> None:
        self.client.rpush("go", *["go"] * count)

    def rows(self, key: str) -> list[str]:
        found: Any = self.client.lrange(key, 0, -1)
        return [row.decode().strip() for row in found]

    def wait_for(self, key: str, count: int) -> list[str]:
        wait_until(lambda: len(self.rows(key)) >= count, timeout=40, description=f"{count} {key}")
        return self.rows(key)


@pytest.fixture
def shop(server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    # Else its tasks would join all later apps of this process.
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
    text = "\n\n".join(block.text for block in runnable(PAGE)).replace(URL, server.url)
    path = tmp_path / "shop.py"
    path.write_text(text + OBSERVED.format(url=server.url))
    spec = importlib.util.spec_from_file_location("shop", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with server.client() as client, closing(module.app):
        yield Shop(module, client, tmp_path)
        close_results(module.app)


@pytest.fixture
def timeline(shop: Shop, server: RedisServer) -> Iterator[Timeline]:
    """The app of the page with a clock; its tasks do not wait."""
    for signal in ("task_prerun", "task_postrun"):
        getattr(shop.code, signal).receivers.clear()
    with Timeline(shop.code.app, server.url) as timeline:
        timeline.eager = True
        yield timeline


def names(timeline: Timeline) -> list[str]:
    return [run.task for run in timeline.runs]


def test_a_task_runs_once_although_it_takes_longer_than_the_visibility_timeout(shop: Shop) -> None:
    with shop.worker("one", 1).ready(), shop.worker("two", 1).ready():
        shop.code.render.delay(1)
        shop.wait_for("began", 1)
        ((_, since),) = held(shop)
        # Renewals, and several looks of both workers for expired messages.
        wait_until(lambda: held(shop)[0][1] > since + 4, description="a task that takes four visibility timeouts")
        shop.go()
        shop.wait_for("ended", 1)
        wait_until(lambda: not held(shop), description="the end")
    assert shop.rows("began") == ["shop.render 1"]


def held(shop: Shop) -> list[tuple[bytes, float]]:
    """Return the messages in flight, and since when their leases count."""
    found: Any = shop.client.zrange("unacked_index", 0, -1, withscores=True)
    return list(found)


def test_a_task_with_a_delay_of_a_month_runs_once(shop: Shop, timeline: Timeline) -> None:
    shop.code.subscribe(7)
    timeline.travel(days=29)
    assert names(timeline) == []
    timeline.travel(days=30)
    assert names(timeline) == ["shop.remind"]


def test_a_scheduled_task_is_cancelled_and_moved_without_a_worker(shop: Shop) -> None:
    for order in (1, 2):
        shop.code.place_order(order)
    before = shop.code.durable.get("remind-2").due_at
    assert shop.code.order_is_paid(1) is CancelOutcome.CANCELLED
    shop.code.customer_needs_time(2)
    (left,) = shop.code.durable.list()
    assert (left.id, round((left.due_at - before) / timedelta(days=1))) == ("remind-2", 6)


def test_tasks_of_one_customer_run_one_after_the_other(shop: Shop) -> None:
    with shop.worker("one").ready(), shop.worker("two").ready():
        for customer in (7, 7, 7, 8):
            shop.code.charge.delay(customer, 10)
        shop.wait_for("began", 2)
        assert sorted(shop.rows("began")) == ["shop.charge 7", "shop.charge 8"]
        for ends in (1, 2, 3, 4):
            shop.go()
            shop.wait_for("ended", ends)
            assert shop.rows("began").count("shop.charge 7") <= shop.rows("ended").count("shop.charge 7") + 1
    assert shop.rows("began").count("shop.charge 7") == 3


def test_a_rate_counts_for_each_account(shop: Shop, timeline: Timeline) -> None:
    for page in range(3):
        for account in ("acme", "globex"):
            shop.code.sync.delay(account, page)
    assert len(timeline.runs) == 2
    timeline.travel(seconds=1)
    assert len(timeline.runs) == 4
    timeline.travel(minutes=1)
    assert len(timeline.runs) == 6


def test_many_changes_lead_to_one_run(shop: Shop, timeline: Timeline) -> None:
    for text in ("a", "b", "c"):
        shop.code.page_changed(7, text)
        timeline.travel(seconds=4)
    assert names(timeline) == []
    timeline.travel(seconds=1)
    assert [run.args for run in timeline.runs] == [(7, "c")]


def test_a_failure_without_retries_left_is_kept(shop: Shop) -> None:
    with shop.worker().ready():
        shop.go(1)
        shop.code.fetch.apply_async(("http://127.0.0.1:1/",), retries=4)
        shown = wait_until(
            lambda: "shop.fetch" in (out := shop_says(shop, "failures", "list", "--groups")) and out,
            description="a kept failure",
        )
        assert "URLError" in shown


def test_retries_wait_longer_each_time(shop: Shop, timeline: Timeline) -> None:
    shop.code.fetch.delay("http://127.0.0.1:1/")
    timeline.travel(minutes=5)
    times = [run.at for run in timeline.runs]
    pauses = [round((later - sooner).total_seconds()) for sooner, later in pairwise(times)]
    assert pauses == [10, 20, 40, 80]
    assert [run.state for run in timeline.runs] == ["RETRY"] * 4 + ["FAILURE"]


def test_the_failures_of_a_task_are_told_once_a_minute(
    shop: Shop, timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[Any] = []
    real = shop.code.urlopen

    def to_slack(request: Any, timeout: float) -> Any:
        if isinstance(request, str):
            return real(request, timeout=timeout)
        posted.append((request.full_url, json.loads(request.data)))
        return io.BytesIO()

    monkeypatch.setattr(shop.code, "SLACK", "https://hooks.example.com/services/T0")
    monkeypatch.setattr(shop.code, "urlopen", to_slack)
    for _ in range(3):
        shop.code.fetch.apply_async(("http://127.0.0.1:1/",), retries=4)
    timeline.travel(seconds=59)
    assert posted == []
    timeline.travel(minutes=5)
    ((url, body),) = posted
    assert url == shop.code.SLACK
    assert body["text"].startswith("shop.fetch failed: URLError (")


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # by Celery
def test_all_tasks_of_a_customer_are_stopped(shop: Shop) -> None:
    running, waiting, other = (shop.code.send_chapter(*call) for call in ((1, "7"), (2, "7"), (3, "8")))
    delayed = shop.code.render.si(4).stamp(customer="7").apply_async(countdown=3600)
    assert delayed.id in shop_says(shop, "tasks", "--stamp", "customer=7")
    with shop.worker(concurrency=1, pool="prefork").ready():
        shop.wait_for("began", 1)
        shop.code.stop_customer("7")
        wait_until(lambda: running.state == delayed.state == "REVOKED", description="the end of the running task")
        shop.go()
        wait_until(lambda: waiting.state == "REVOKED", description="the discarded message")
        wait_until(lambda: other.state == "SUCCESS", description="the task of the other customer")
    assert shop.rows("began") == ["shop.render 1", "shop.render 3"]
    assert shop.code.durable.count() == 0


def test_an_urgent_task_overtakes(shop: Shop) -> None:
    for image in range(3):
        shop.code.resize.delay(image)
    shop.code.reset_password.delay(7)
    shop.go(4)
    with shop.worker(concurrency=1).ready():
        shop.wait_for("ended", 4)
    assert shop.rows("began")[0] == "shop.reset_password 7"


def test_the_task_of_a_killed_worker_runs_again(shop: Shop) -> None:
    with shop.worker("one").ready() as worker:
        shop.code.render.delay(1)
        shop.wait_for("began", 1)
        worker.kill()
    shop.go()
    with shop.worker("two").ready():
        shop.wait_for("ended", 1)
    assert shop.rows("began") == ["shop.render 1"] * 2


def shop_says(shop: Shop, *arguments: str) -> str:
    """Return the output of `redis-queue` for the app of the page."""
    command = [sys.executable, "-m", "redis_queue", "-A", "shop", *arguments]
    done = subprocess.run(
        command, cwd=shop.directory, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": f"{ROOT}:."}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # by Celery
def test_waiting_tasks_and_the_progress_of_a_batch_are_seen(shop: Shop) -> None:
    shop.code.place_order(42)
    ((id_, _),) = shop.code.reminders()
    assert id_ == "remind-42"
    assert "remind-42" in shop_says(shop, "scheduled", "list")
    batch = shop.code.render_book([1, 2, 3])
    assert re.search(r"celery .*\b3\b", shop_says(shop, "queues"))
    with shop.worker().ready():
        shop.wait_for("began", 3)
        assert shop.code.progress(batch) == (0, 3)
        shop.go(2)
        wait_until(lambda: shop.code.progress(batch) == (2, 3), description="two of three")
        assert "shop.render" in wait_until(
            lambda: "shop.render" in (out := shop_says(shop, "running")) and out, description="a report"
        )


def test_a_schedule_follows_its_time_zone(shop: Shop) -> None:
    shop.code.set_up()
    times = shop.code.durable.schedules.next_runs("morning", 300)
    local = {(time.astimezone(ZoneInfo("Europe/Berlin")).hour, time.weekday() < 5) for time in times}
    assert local == {(9, True)}
    assert {time.astimezone(timezone.utc).hour for time in times} == {7, 8}


def test_two_workers_send_each_run_once(shop: Shop) -> None:
    shop.go(10)
    with shop.worker("one").ready(), shop.worker("two").ready():
        shop.code.durable.schedules.put("tick", "every 1 s", "shop.report", max_runs=3)
        wait_until(lambda: not shop.code.durable.schedules.get("tick").next_run, description="the last run")
        shop.wait_for("ended", 3)
    assert shop.rows("began") == ["shop.report"] * 3


def test_a_test_travels_in_time(shop: Shop, timeline: Timeline) -> None:
    shop.code.test_reminder(timeline)


def test_the_table_names_the_tests() -> None:
    text = PAGE.read_text("utf-8")
    named = re.findall(r"`(test_\w+)`", text)
    assert len(re.findall(r"^## ", text, re.MULTILINE)) == 14
    assert all(isinstance(globals()[name], Callable) for name in named)
    assert (ROOT / "tests/contrib/django/test_outbox.py").exists()
