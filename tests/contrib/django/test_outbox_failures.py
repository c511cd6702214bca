"""A call that cannot be relayed is reported as one failure, and the others are relayed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from celery import Celery

from redis_queue import DelayQueue
from tests.support.django.project import DUE_AT, use_app, write
from tests.support.servers import RedisServer

TOO_LATE = 10**18
"""Milliseconds, outside the calendar."""


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, shop: Any) -> str:
    return str(shop) if request.param == "sqlite" else str(request.getfixturevalue("postgres"))


@pytest.fixture
def small(tables: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a Redis that closes connections with commands of more than a megabyte."""
    del tables
    with RedisServer("--proto-max-bulk-len", "1mb") as server, server.client() as client:
        app = Celery("shop", broker="memory://", set_as_current=False)
        app.conf.redis_queue_url = server.url
        use_app(app, monkeypatch)
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
