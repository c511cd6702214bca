"""A type checker finds wrong settings and filters in keyword arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import pytest
from mypy import api

from redis_queue.store.settings import QueueOverrides, Settings
from redis_queue.web.settings import WebOverrides, WebSettings
from tests.support.paths import ROOT

CALLS = """
from redis_queue import DelayQueue, RedisQueue
from redis_queue.celery import DurableTasks
from redis_queue.web import dashboard

RedisQueue("orders", "redis://", max_deliveries=5, lease=30)
RedisQueue("orders", "redis://", max_delivery=5)  # wrong
RedisQueue("orders", "redis://", max_deliveries="5")  # wrong
DelayQueue("later", "redis://", shards=4)
DelayQueue("later", "redis://", shard=4)  # wrong
def look(delayed: DurableTasks) -> None:
    delayed.list(task="shop.remind", limit=5)[0]
    delayed.list(tasks="shop.remind")  # wrong
    delayed.scan(task="shop.remind")[0]  # wrong
    delayed.cancel_matching(quue="mail")  # wrong
dashboard("redis://", allow_write=True)
dashboard("redis://", allow_writes=True)  # wrong
"""


def test_wrong_keywords_are_type_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "calls.py"
    page.write_text(CALLS)
    # The configuration of the project, and with it its cache, is used.
    monkeypatch.chdir(ROOT)
    out, err, _ = api.run(["--no-error-summary", str(page)])
    lines = [int(line.split(":")[1]) for line in out.splitlines() if ": error: " in line]
    wrong = [number for number, line in enumerate(CALLS.splitlines(), 1) if line.endswith("# wrong")]
    assert (lines, err) == (wrong, ""), out


@pytest.mark.parametrize(("keywords", "settings"), [(QueueOverrides, Settings), (WebOverrides, WebSettings)])
def test_the_typed_keywords_match_the_settings(keywords: Any, settings: Any) -> None:
    assert get_type_hints(keywords) == get_type_hints(settings)
