"""The relay of a committed call replaces an older entry with the same id and keeps a newer one."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from redis_queue.celery.message.headers import CALL
from redis_queue.delay.model import Push
from tests.support.django.project import rows, use_app, write
from tests.support.paths import ROOT
from tests.support.servers import RedisServer

SKEW = 3600


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, shop: Any) -> str:
    return str(shop) if request.param == "sqlite" else str(request.getfixturevalue("postgres"))


@pytest.fixture(params=[-SKEW, 0, SKEW], ids=["behind", "equal", "ahead"])
def clock(request: pytest.FixtureRequest, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shift the clock of the process against that of Redis; PostgreSQL has its own clock."""
    skewed = SimpleNamespace(time_ns=lambda: time.time_ns() + request.param * 10**9)
    monkeypatch.setattr("redis_queue.contrib.django.outbox.models.time", skewed)


def state(delayed: Any) -> tuple[str, str]:
    found = delayed.queue.look("x")
    return found.state, found.body["task"]


@pytest.mark.usefixtures("clock")
def test_it_replaces_an_older_call(tables: Any, outbox: Any, delayed: Any) -> None:
    delayed.queue.push({"task": "shop.old"}, id="x", delay=900)
    with tables.atomic():
        outbox.schedule("shop.new", countdown=60, task_id="x")
    assert (state(delayed), rows()) == (("delayed", "shop.new"), [])


@pytest.mark.usefixtures("clock")
def test_it_replaces_an_older_dead_letter(tables: Any, outbox: Any, delayed: Any) -> None:
    delayed.queue.foreign.bury(Push({"task": "shop.old"}, id="x"), reason="no such queue", deliveries=5)
    with tables.atomic():
        outbox.schedule("shop.new", countdown=60, task_id="x")
    assert (state(delayed), rows()) == (("delayed", "shop.new"), [])
    assert delayed.queue.dead_letters() == []


@pytest.mark.usefixtures("clock")
def test_it_does_not_replace_a_newer_call(tables: Any, outbox: Any, delayed: Any) -> None:
    from django.db.models import F

    from redis_queue.contrib.django.outbox.models import Call

    del tables
    write(task_id="x", task="shop.old")
    Call.objects.update(stored_at=F("stored_at") - 1000)
    delayed.queue.push({"task": "shop.new"}, id="x", delay=900)
    assert outbox.relay() == outbox.Relayed(moved=1)
    assert (state(delayed), rows()) == (("delayed", "shop.new"), [])


def test_the_last_of_several_calls_stays(tables: Any, outbox: Any, delayed: Any) -> None:
    for number in range(5):
        with tables.atomic():
            outbox.schedule(f"shop.call{number}", countdown=60, task_id="x")
    assert state(delayed) == ("delayed", "shop.call4")


def test_it_needs_only_the_commands_of_the_producer_role(
    tables: Any, outbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    found = re.search(r"### producer\n.*?```\n(.*?)\n```", text, re.DOTALL)
    assert found
    allowed = {rule.removeprefix("+") for rule in found[1].split() if rule.startswith("+")}
    with RedisServer() as server, server.client() as client:
        app = Celery("shop", broker="memory://", set_as_current=False)
        app.conf.redis_queue_url = server.url
        use_app(app, monkeypatch)
        for _ in range(2):
            with tables.atomic():
                outbox.schedule("shop.remind", countdown=60, task_id="x")
        sent = {name.removeprefix("cmdstat_").partition("|")[0] for name in client.info("commandstats")}
    # The others are commands of the connections and of this test.
    assert sent - allowed <= {"auth", "client", "eval", "hello", "select", "script", "config", "info", "ping"}


def test_a_call_after_a_revoke_counts_as_newer(tables: Any, outbox: Any, delayed: Any) -> None:
    delayed.app.control.revoke("x")
    for _ in range(2):
        with tables.atomic():
            outbox.schedule("shop.new", countdown=60, task_id="x")
        assert delayed.queue.calls.is_renewed("x", delayed.queue.look("x").headers[CALL])
