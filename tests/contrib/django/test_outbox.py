"""Calls that are scheduled in a transaction are stored with its commit, at least once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import redis
from celery import chord as celery_chord
from celery import group as celery_group
from kombu.serialization import loads

from redis_queue import DelayQueue
from redis_queue.celery import TaskCall
from redis_queue.celery.message.destinations import Destinations
from redis_queue.celery.message.entry import envelope_of_call, envelope_of_entry
from redis_queue.celery.message.envelope import Envelope
from redis_queue.errors import EntryExistsError, InvalidDelayError, InvalidValueError
from tests.support.celery.tenants import CURRENT, HEADER, single_task
from tests.support.django.project import rows, use_redis, write
from tests.support.servers import RedisServer

pytestmark = pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"], indirect=True)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """A Redis for one test, with an app that is not connected to it yet."""
    with RedisServer() as server:
        use_redis(server.url, monkeypatch)
        yield server


def test_it_is_stored_with_the_commit_and_not_before(tables: Any, outbox: Any, delayed: Any) -> None:
    with tables.atomic():
        id_ = outbox.schedule("shop.remind", (1,), {"mail": "a@b.c"}, countdown=60, queue="slow")
        assert delayed.count() == 0
    (entry,) = delayed.list()
    assert (entry.id, entry.task, entry.queue) == (id_, "shop.remind", "slow")
    assert timedelta(seconds=55) < entry.due_at - datetime.now(timezone.utc) <= timedelta(seconds=60)
    assert rows() == []


def test_a_signature_is_stored_whole(tables: Any, outbox: Any, delayed: Any) -> None:
    app = delayed.app
    signature = app.signature("shop.remind", (2,), {"mail": "a"}, countdown=60, priority=3, task_id="remind-2")
    with tables.atomic():
        outbox.schedule(signature)
        outbox.schedule(signature.clone(), (1,), {"mail": "b"}, countdown=90, task_id="other", queue="slow")
        outbox.schedule(signature.clone().set(immutable=True), (1,), task_id="immutable", priority=4)
    found = {entry.id: entry for entry in delayed.list()}
    known = {id_: (row.args, row.kwargs, row.queue, row.priority) for id_, row in found.items()}
    queue = app.conf.task_default_queue
    assert known == {
        "remind-2": ("(2,)", "{'mail': 'a'}", queue, 3),
        "other": ("(1, 2)", "{'mail': 'b'}", "slow", 3),
        "immutable": ("(2,)", "{'mail': 'a'}", queue, 4),
    }
    times = [(found[id_].due_at - datetime.now(timezone.utc)).total_seconds() for id_ in ("remind-2", "other")]
    assert [55 < times[0] <= 60, 85 < times[1] <= 90] == [True, True]


@pytest.fixture
def single(delayed: Any, redis_url: str) -> Iterator[Any]:
    """A task of celery-singleton in the app, which is called for a tenant."""
    yield single_task(delayed.app, redis_url)
    del delayed.app.tasks["shop.once"]


def test_a_call_is_made_by_the_apply_async_of_its_task_when_it_is_written(
    tables: Any, outbox: Any, delayed: Any, single: Any
) -> None:
    token = CURRENT.set("acme")
    with tables.atomic():
        id_ = outbox.schedule(single, (1,), countdown=60, priority=3, headers={"source": "test"})
        # The id of the call that waits: this one is not written.
        assert outbox.schedule("shop.once", (1,)) == id_
        (row,) = rows()
        assert row.countdown == 60_000
    CURRENT.reset(token)
    (entry,) = delayed.queue.list()
    envelope = envelope_of_entry(delayed.app, entry, Destinations(delayed.app))
    assert (envelope.id, envelope.headers[HEADER], envelope.headers["source"]) == (id_, "acme", "test")
    assert (envelope.priority, entry.payload["options"]["queue"]) == (3, delayed.app.conf.task_default_queue)
    # It was called once for each call.
    assert delayed.store.client.llen(f"{delayed.app.conf.task_default_queue}-audit") == 2


@pytest.mark.parametrize("kind", ["chain", "group", "chord", "link", "unknown queue"])
def test_what_cannot_be_stored_whole_is_refused_before_the_transaction_ends(
    tables: Any, outbox: Any, delayed: Any, kind: str
) -> None:
    app = delayed.app
    one = app.signature("shop.remind", (2,))
    made = {
        "chain": one | one.clone(),
        "group": celery_group(one),
        "chord": celery_chord([one], one.clone()),
        "link": one.clone().on_error(one.clone()),
        "unknown queue": one,
    }
    if kind == "unknown queue":
        app.amqp.queues.create_missing = False
    with pytest.raises(InvalidValueError), tables.atomic():
        outbox.schedule(made[kind], **({"queue": "nowhere"} if kind == "unknown queue" else {}))
    assert rows() == []


def test_similar_ids_are_different_ones(tables: Any, outbox: Any, delayed: Any) -> None:
    with tables.atomic():
        for id_ in ("order-A", "order-a", "order-a ", "order-ä"):
            outbox.schedule("shop.remind", countdown=60, task_id=id_)
        assert outbox.cancel("order-A")
    assert sorted(entry.id for entry in delayed.list()) == ["order-a", "order-a ", "order-ä"]


def test_a_rolled_back_call_is_not_scheduled(tables: Any, outbox: Any, delayed: Any) -> None:
    with tables.atomic():
        outbox.schedule("shop.remind", countdown=60)
        tables.set_rollback(True)
    assert outbox.relay() == outbox.Relayed()
    assert delayed.count() == 0


def test_a_commit_during_an_outage_of_redis_is_relayed_later(
    tables: Any, outbox: Any, delayed: Any, client: redis.Redis
) -> None:
    ids = []
    client.execute_command("CLIENT", "PAUSE", 20_000, "WRITE")
    try:
        with pytest.MonkeyPatch.context() as patch:
            # As if the process died right after its commit.
            patch.setattr("redis_queue.contrib.django.outbox.calls.try_relay", lambda **_: None)
            for number in range(3):
                with tables.atomic():
                    ids.append(outbox.schedule("shop.remind", (number,), countdown=60))
    finally:
        client.execute_command("CLIENT", "UNPAUSE")
    assert [row.task_id for row in rows()] == ids
    assert outbox.relay() == outbox.Relayed(moved=3)
    assert sorted(entry.id for entry in delayed.list()) == sorted(ids)


def test_scheduling_works_before_the_first_connection_to_redis(tables: Any, outbox: Any, own: RedisServer) -> None:
    own.kill()
    with tables.atomic():
        id_ = outbox.schedule("shop.remind", (1,), countdown=60)
    assert [row.task_id for row in rows()] == [id_]
    own.restart()
    assert outbox.relay() == outbox.Relayed(moved=1)
    with own.client() as client:
        assert [entry.id for entry in DelayQueue("scheduled", client).list()] == [id_]


def test_many_calls_of_one_transaction_are_relayed_once(
    tables: Any, outbox: Any, own: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    own.kill()
    with tables.atomic():
        for number in range(20):
            outbox.schedule("shop.remind", (number,), countdown=60)
    refused = [record for record in caplog.records if record.message.startswith("not relayed yet")]
    assert (len(rows()), len(refused)) == (20, 1)
    own.restart()
    assert outbox.relay() == outbox.Relayed(moved=20)


def test_more_calls_than_a_chunk_are_relayed_with_their_commit(
    tables: Any, outbox: Any, delayed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_queue.contrib.django.outbox.transfer.CHUNK", 2)
    with tables.atomic():
        for number in range(5):
            outbox.schedule("shop.remind", (number,), countdown=60)
    assert (rows(), delayed.count()) == ([], 5)


@pytest.mark.parametrize("undone", [0, 1, 2])
def test_the_relay_of_a_transaction_survives_a_rolled_back_savepoint(
    tables: Any, outbox: Any, delayed: Any, undone: int
) -> None:
    with tables.atomic():
        for number in range(3):
            with tables.atomic():
                outbox.schedule("shop.remind", countdown=60, task_id=f"x{number}")
                if number == undone:
                    tables.set_rollback(True)
    assert rows() == []
    assert sorted(entry.id for entry in delayed.list()) == [f"x{number}" for number in range(3) if number != undone]


def test_a_django_test_case_can_capture_each_relay(tables: Any, outbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.test import TestCase

    relayed: list[Any] = []
    monkeypatch.setattr("redis_queue.contrib.django.outbox.calls.try_relay", lambda **given: relayed.append(given))
    with tables.atomic():
        for count in (1, 2):
            with TestCase.captureOnCommitCallbacks(execute=True):
                outbox.schedule("shop.remind", countdown=60)
            assert relayed == [{"calls": 1, "using": "default"}] * count
        tables.set_rollback(True)


def test_repeating_a_relay_changes_nothing(tables: Any, outbox: Any, delayed: Any) -> None:
    write(task_id="x")
    (row,) = rows()
    assert outbox.relay() == outbox.Relayed(moved=1)
    delayed.reschedule("x", countdown=900)
    (entry,) = delayed.list()
    row.save(force_insert=True)
    assert outbox.relay() == outbox.Relayed(moved=1)
    assert [(found.id, found.due_at) for found in delayed.list()] == [("x", entry.due_at)]


def test_it_is_cancelled_before_and_after_the_relay(tables: Any, outbox: Any, delayed: Any) -> None:
    with tables.atomic():
        id_ = outbox.schedule("shop.remind", countdown=60)
        assert outbox.cancel(id_)
    assert not outbox.cancel(id_)
    with tables.atomic():
        id_ = outbox.schedule("shop.remind", countdown=60)
    assert delayed.count() == 1
    assert outbox.cancel(id_)
    assert delayed.count() == 0


def test_a_rolled_back_cancel_has_no_effect(tables: Any, outbox: Any, delayed: Any) -> None:
    write(task_id="x")
    with tables.atomic():
        assert outbox.cancel("x")
        tables.set_rollback(True)
    assert outbox.relay() == outbox.Relayed(moved=1)
    assert [entry.id for entry in delayed.list()] == ["x"]


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ({"countdown": float("nan")}, {}, InvalidDelayError),
        ({"countdown": -1}, {}, InvalidDelayError),
        ({"countdown": 1, "eta": datetime(2030, 1, 1, tzinfo=timezone.utc)}, {}, InvalidDelayError),
        ({"eta": datetime(2030, 1, 1)}, {}, InvalidDelayError),
        ({"task_id": "a\nb"}, {}, InvalidValueError),
        ({"args": (object(),)}, {}, InvalidValueError),
        ({"countdwon": 5}, {}, InvalidValueError),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_written(
    tables: Any, outbox: Any, arguments: dict[str, Any], options: dict[str, Any], error: type[Exception]
) -> None:
    del tables
    with pytest.raises(error):
        outbox.schedule("shop.remind", **arguments, **options)
    assert rows() == []


def test_an_id_can_be_used_once(tables: Any, outbox: Any) -> None:
    with tables.atomic():
        outbox.schedule("shop.remind", countdown=60, task_id="x")
        with pytest.raises(EntryExistsError):
            outbox.schedule("shop.remind", countdown=60, task_id="x")
    assert rows() == []


def test_arguments_of_other_types_need_celerys_json_serializer(outbox: Any) -> None:
    refused = r"^shop\.remind: args\[1\] of type UUID cannot be stored as JSON: "
    with pytest.raises(InvalidValueError, match=refused):
        outbox.schedule("shop.remind", (1, UUID(int=7)), countdown=60, serializer="yaml")
    assert rows() == []


def test_arguments_of_other_types_are_sent_like_those_of_apply_async(outbox: Any, delayed: Any) -> None:
    arguments = (UUID(int=7), Decimal("1.10"), date(2030, 1, 2), b"\xff")
    named = {"eta": datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc)}
    outbox.schedule("shop.remind", arguments, named, countdown=60, task_id="x", expires=named["eta"])
    delayed.app.send_task("shop.remind", arguments, named, countdown=60, task_id="y", expires=named["eta"])
    call, sent = (delayed.queue.get(name) for name in "xy")
    became = envelope_of_call(delayed.app, TaskCall.from_payload(call.payload), "x")
    expected = Envelope.unpack(sent.payload, "y", sent.headers)
    args, kwargs, _ = loads(became.body, became.content_type, became.content_encoding)
    assert (tuple(args), kwargs) == (arguments, named)
    assert became.body == expected.body
    for header in ("argsrepr", "kwargsrepr", "expires"):
        assert became.headers[header] == expected.headers[header]
    assert became.properties.keys() <= expected.properties.keys()
    assert delayed.get("x").args == expected.headers["argsrepr"]


def test_arguments_are_unchanged(outbox: Any, delayed: Any) -> None:
    arguments = ["a\x00b", 1e16, 1e300, -0.0, 0.1, 2**70, {"later": 1, "a": [None, True]}, "ü\u2028"]
    id_ = outbox.schedule("shop.remind", arguments, countdown=60)
    assert repr(delayed.queue.get(id_).payload["args"]) == repr(arguments)


@pytest.mark.parametrize("use_tz", [True, False])
def test_the_time_does_not_depend_on_the_settings(outbox: Any, delayed: Any, use_tz: bool) -> None:
    from django.test import override_settings

    # The second time at which clocks in New York show 01:30.
    eta = datetime(2029, 11, 4, 6, 30, 0, 1000, tzinfo=timezone.utc)
    with override_settings(USE_TZ=use_tz, TIME_ZONE="America/New_York"):
        outbox.schedule("shop.remind", eta=eta, task_id="x")
        outbox.schedule("shop.remind", countdown=60, task_id="y")
    assert delayed.get("x").due_at == eta
    assert timedelta(seconds=55) < delayed.get("y").due_at - datetime.now(timezone.utc) <= timedelta(seconds=60)


def test_a_countdown_counts_from_when_it_was_written(outbox: Any, delayed: Any) -> None:
    from redis_queue.contrib.django.outbox.models import Call

    now = datetime.now(timezone.utc)
    Call.objects.create(
        task_id="x", task="shop.remind", payload={}, countdown=60_000, stored_at=now - timedelta(seconds=20)
    )
    assert outbox.relay().moved == 1
    assert timedelta(seconds=39) < delayed.get("x").due_at - now < timedelta(seconds=55)


def test_a_relay_in_an_open_transaction_is_refused(tables: Any, outbox: Any, delayed: Any) -> None:
    with tables.atomic():
        outbox.schedule("shop.remind", countdown=60)
        with pytest.raises(RuntimeError):
            outbox.relay()
        tables.set_rollback(True)
    assert delayed.count() == 0


def test_another_database_has_its_own_outbox(
    tables: Any, outbox: Any, delayed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.core.management import call_command
    from django.db import connections

    from examples.shop.settings import database
    from redis_queue.contrib.django.outbox.models import Call

    options = {**connections.settings["default"], **database(str(tmp_path / "other.sqlite3"))}
    monkeypatch.setitem(connections.settings, "other", options)
    try:
        call_command("migrate", "redis_queue_outbox", database="other", verbosity=0)
        with tables.atomic(using="other"):
            outbox.schedule("shop.remind", countdown=60, task_id="x", using="other")
            assert (rows(), Call.objects.using("other").count()) == ([], 1)
            assert outbox.relay() == outbox.Relayed()
        assert Call.objects.using("other").count() == 0
        assert [entry.id for entry in delayed.list()] == ["x"]
        with tables.atomic(using="other"):
            outbox.schedule("shop.remind", countdown=60, task_id="y", using="other")
            assert outbox.cancel("y", using="other")
        assert [entry.id for entry in delayed.list()] == ["x"]
    finally:
        connections["other"].close()
        del connections["other"]
