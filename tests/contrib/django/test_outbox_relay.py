"""The relay of a committed call replaces an older entry with the same id and keeps a newer one."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest

from redis_queue import DelayQueue
from redis_queue.celery.message.headers import CALL
from redis_queue.delay.model import Push
from tests.support.django.project import DUE_AT, rows, use_redis, write
from tests.support.paths import ROOT
from tests.support.servers import RedisServer

SKEW = 3600


pytestmark = pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"], indirect=True)


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
        use_redis(server.url, monkeypatch)
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
        assert delayed.queue.revokes.is_renewed("x", delayed.queue.look("x").headers[CALL])


# A call that cannot be relayed is reported as one failure, and the others are relayed.

TOO_LATE = 10**18
"""Milliseconds, outside the calendar."""


@pytest.fixture
def small(tables: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a Redis that closes connections with commands of more than a megabyte."""
    del tables
    with RedisServer("--proto-max-bulk-len", "1mb") as server, server.client() as client:
        use_redis(server.url, monkeypatch)
        yield client


def overwrite(task_id: str, column: str, value: Any) -> None:
    from django.db.models.expressions import RawSQL

    from redis_queue.contrib.django.outbox.models import Call

    # As another program would, without the conversion of the model's field.
    Call.objects.filter(task_id=task_id).update(**{column: RawSQL("%s", [value])})


def status() -> str:
    from django.core.management import call_command

    out = StringIO()
    call_command("redis_queue_relay", status=True, stdout=out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("payload", "{"),
        ("payload", "[1]"),
        ("payload", '{"args": 5}'),
        ("payload", '{"options": {"countdown": 5}}'),
        ("due_at", TOO_LATE),
        ("countdown", TOO_LATE),
    ],
)
def test_an_unreadable_row_is_set_aside(
    outbox: Any, delayed: Any, caplog: pytest.LogCaptureFixture, column: str, value: Any
) -> None:
    from redis_queue.contrib.django.outbox.models import Call

    for name in ("first", "bad", "last"):
        write(task_id=name)
    overwrite("bad", column, value)
    assert outbox.relay() == outbox.Relayed(moved=2, failed=1)
    assert sorted(entry.id for entry in delayed.list()) == ["first", "last"]
    assert "shop.remind[bad] is set aside in the outbox: " in caplog.text
    assert outbox.relay() == outbox.Relayed()
    ((name, error),) = Call.objects.filter(set_aside=True).values_list("task_id", "error")
    assert name == "bad"
    assert error
    assert status() == (
        f"0 waiting, 0 of them refused by Redis before, 1 set aside\nset aside: shop.remind bad: {error}\n"
    )


def test_a_row_that_cannot_be_stored_is_set_aside(tables: Any, outbox: Any, delayed: Any) -> None:
    del tables
    write(task_id="bad", due_at=DUE_AT + timedelta(days=365 * 50))
    write(task_id="good")
    assert outbox.relay() == outbox.Relayed(moved=1, failed=1)
    assert [entry.id for entry in delayed.list()] == ["good"]


def test_a_call_that_redis_refuses_is_retried_after_the_others(tables: Any, outbox: Any, small: Any) -> None:
    from redis_queue.contrib.django.outbox.models import Call

    del tables
    write(task_id="large", payload={"args": ["x" * 2**21]})
    write(task_id="good")
    assert outbox.relay() == outbox.Relayed(moved=1, failed=1)
    assert status().startswith("1 waiting, 1 of them refused by Redis before, 0 set aside\nrefused: shop.remind large:")
    write(task_id="better")
    assert outbox.relay() == outbox.Relayed(moved=1, failed=1)
    assert Call.objects.values_list("failures", flat=True).get() == 2
    small.config_set("proto-max-bulk-len", 2**29)
    assert outbox.relay() == outbox.Relayed(moved=1)
    assert sorted(entry.id for entry in DelayQueue("scheduled", small).list()) == ["better", "good", "large"]


# Signals during `manage.py redis_queue_relay`.

MODULE = "redis_queue.contrib.django.outbox.management.commands.redis_queue_relay"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_its_handlers_are_removed(
    number: signal.Signals, tables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.core.management import call_command

    from redis_queue.contrib.django.outbox.transfer import relay

    del tables
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
    relayed = []

    def signalled(using: str | None) -> Any:
        relayed.append(using)
        signal.raise_signal(number)
        return relay(using=using)

    monkeypatch.setattr(f"{MODULE}.relay", signalled)

    call_command("redis_queue_relay", interval=60.0)

    assert relayed == [None]
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)] == before
