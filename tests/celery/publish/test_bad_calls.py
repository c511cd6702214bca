"""Invalid delayed calls: one clear error before anything is sent, and never a lost task."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from datetime import time as time_of_day
from decimal import Decimal
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery, chain, group
from celery.exceptions import Retry
from kombu.exceptions import EncodeError

from redis_queue import BodyError, InvalidDelayError, InvalidValueError, RedisQueueError
from redis_queue.celery import DurableTasks
from redis_queue.celery.stored_tasks import StoredTasks
from tests.support.celery.brokers import Broker, deliver, running
from tests.support.paths import ROOT

TEN_YEARS = 3653 * 86400
NOW = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)


@pytest.fixture
def app(broker: Broker, redis_url: str) -> Celery:
    """An app that delays its tasks in Redis, with one task."""
    app = broker.app(redis_queue_url=redis_url, result_backend="disabled://")
    DurableTasks(app, leases=False)

    @app.task(name="shop.add", shared=False)  # type: ignore[untyped-decorator]
    def add(x: float, y: float) -> float:
        return x + y

    return app


on_redis = pytest.mark.parametrize("broker", ["redis"], indirect=True)


def stored(app: Celery) -> list[str]:
    return [entry.id for entry in StoredTasks.of(app).list()]


def refused(client: redis.Redis, kind: type[RedisQueueError], named: str, call: Callable[[], Any]) -> None:
    """Check that *call* raises exactly *kind*, with one line that contains *named*, and stores nothing."""
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert isinstance(caught.value, ValueError)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
    assert client.keys() == []


WAYS: dict[str, Callable[..., Any]] = {
    "apply_async": lambda app, **delay: app.tasks["shop.add"].apply_async((1, 2), **delay),
    "send_task": lambda app, **delay: app.send_task("shop.elsewhere", **delay),
    "signature": lambda app, **delay: app.tasks["shop.add"].s(1, 2).set(**delay).delay(),
    "group": lambda app, **delay: group(app.tasks["shop.add"].s(1, 2)).apply_async(**delay),
    "chain": lambda app, **delay: chain(app.tasks["shop.add"].s(1, 2), app.tasks["shop.add"].s(3)).apply_async(**delay),
    "send_many": lambda app, **delay: DurableTasks(app, leases=False).send_many(
        [app.tasks["shop.add"].s(1, 2).set(**delay)]
    ),
}
BAD_COUNTDOWNS = [
    math.nan,
    math.inf,
    -math.inf,
    1e12,
    1e20,
    10**400,
    1 << 31,
    timedelta.max,
    "5",
    "soon",
    b"5",
    [5],
    True,
    Decimal(5),
    1j,
    NOW,
]


@on_redis
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", BAD_COUNTDOWNS, ids=lambda value: repr(value)[:30])
def test_an_impossible_countdown_is_refused(app: Celery, client: redis.Redis, way: str, value: Any) -> None:
    refused(client, InvalidDelayError, f"countdown={value!r}", lambda: WAYS[way](app, countdown=value))


@on_redis
@pytest.mark.parametrize("protocol", [1, 2])
def test_an_impossible_countdown_is_refused_in_both_protocols(app: Celery, client: redis.Redis, protocol: int) -> None:
    app.conf.task_protocol = protocol
    for delay in ({"countdown": math.nan}, {"eta": "tomorrow"}):
        refused(client, InvalidDelayError, next(iter(delay)), lambda delay=delay: WAYS["apply_async"](app, **delay))


BAD_ETAS = [
    "tomorrow",
    "garbage",
    "2030-13-45T99:99:99",
    date(2030, 1, 1),
    time_of_day(12),
    1_900_000_000,
    1.9e9,
    True,
    timedelta(hours=1),
    b"2030-01-01",
    [1],
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
]


@on_redis
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", BAD_ETAS, ids=lambda value: str(value)[:30])
def test_an_impossible_eta_is_refused(app: Celery, client: redis.Redis, way: str, value: Any) -> None:
    refused(client, InvalidDelayError, "eta=", lambda: WAYS[way](app, eta=value))


@on_redis
@pytest.mark.parametrize("way", [way for way in WAYS if way != "send_many"])
@pytest.mark.parametrize(
    ("delay", "reason"),
    [
        ({"countdown": TEN_YEARS + 1}, "delay="),
        ({"countdown": timedelta(days=20_000)}, "delay="),
        ({"eta": datetime(2080, 1, 1)}, "due_at="),
        ({"eta": datetime(9999, 12, 31, tzinfo=timezone.utc)}, "due_at="),
    ],
)
def test_a_delay_of_more_than_ten_years_waits_in_the_broker_as_without_the_line(
    *, app: Celery, client: redis.Redis, way: str, delay: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    WAYS[way](app, **delay)
    (message,) = map(json.loads, client.lrange(app.conf.task_default_queue, 0, -1))
    eta = message["headers"]["eta"]
    if "eta" in delay:
        assert eta.startswith(delay["eta"].isoformat()[:19])
    else:
        assert datetime.fromisoformat(eta) > datetime.now(timezone.utc) + timedelta(days=3600)
    assert StoredTasks.of(app).count() == 0
    assert f"waits in the broker: {reason}" in caplog.text


@on_redis
@pytest.mark.parametrize("way", [way for way in WAYS if way != "send_many"])
def test_a_countdown_counts_more_than_an_eta_as_without_the_line(app: Celery, way: str) -> None:
    WAYS[way](app, countdown=500, eta=NOW)
    (entry,) = StoredTasks.of(app).list()
    assert entry.due_at - entry.stored_at == timedelta(seconds=500)


@on_redis
@pytest.mark.parametrize("value", [math.nan, math.inf, "5", True, timedelta.max])
@pytest.mark.parametrize("of_all", [True, False], ids=["for all", "of the last"])
def test_send_many_refuses_an_impossible_countdown(
    app: Celery, client: redis.Redis, value: Any, *, of_all: bool
) -> None:
    add, send_many = app.tasks["shop.add"], DurableTasks(app, leases=False).send_many
    last = add.s(1, 2) if of_all else add.s(1, 2).set(countdown=value)
    call = partial(send_many, [add.s(1, 2).set(countdown=5), last], countdown=value if of_all else None)
    refused(client, InvalidDelayError, f"countdown={value!r}", call)


@on_redis
class TestValidDelay:
    @pytest.mark.parametrize("way", WAYS)
    def test_may_be_a_timedelta(self, app: Celery, way: str) -> None:
        WAYS[way](app, countdown=timedelta(minutes=5))

        (entry,) = StoredTasks.of(app).list()
        assert entry.due_at - entry.stored_at == timedelta(minutes=5)

    @pytest.mark.parametrize(
        "delay",
        [
            *({"countdown": value} for value in (-1, -1e-9, -1e12, timedelta(days=-1), timedelta.min)),
            # None, as in Celery.
            *({"countdown": value} for value in (0, 0.0, False, "")),
            {"eta": ""},
        ],
    )
    def test_that_is_past_or_falsy_is_sent_at_once(self, app: Celery, broker: Broker, delay: dict[str, Any]) -> None:
        app.send_task("shop.add", **delay)

        assert stored(app) == []
        assert len(broker.take(app.conf.task_default_queue)) == 1

    @pytest.mark.parametrize("value", [1e-9, 1, TEN_YEARS])
    def test_may_be_short_or_long(self, app: Celery, value: float) -> None:
        app.send_task("shop.add", countdown=value, task_id="order-42")

        assert stored(app) == ["order-42"]

    @pytest.mark.parametrize(
        "value", [datetime(1, 1, 1), datetime(1, 1, 1, tzinfo=timezone.utc), "1969-12-31T00:00:00"]
    )
    def test_long_past_is_due_at_once(self, app: Celery, value: Any) -> None:
        app.send_task("shop.add", eta=value, task_id="order-42")

        (entry,) = StoredTasks.of(app).list()
        assert entry.due_at == datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=timezone.utc)

    def test_eta_in_the_gap_of_a_clock_change_uses_the_earlier_offset(self, app: Celery) -> None:
        # At 02:00 the clocks jump to 03:00: 02:30 is read with the offset of the hour before.
        app.send_task("shop.add", eta=datetime(2030, 3, 31, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")))

        (entry,) = StoredTasks.of(app).list()
        assert entry.due_at == datetime(2030, 3, 31, 1, 30, tzinfo=timezone.utc)

    def test_may_span_a_clock_change(self, app: Celery) -> None:
        app.conf.timezone = "Europe/Berlin"
        app.send_task("shop.add", countdown=300 * 86400)

        (entry,) = StoredTasks.of(app).list()
        assert entry.due_at - entry.stored_at == timedelta(days=300)


ODD_IDS = ["\x00", "a\r\nb", "a\tb", "\x1b]0;x\x07", "\ud800", "x" * 256, "x" * 10_000_000]


@on_redis
@pytest.mark.parametrize("value", ODD_IDS, ids=lambda value: ascii(value)[:20])
def test_a_task_with_an_odd_id_waits_in_the_broker_as_without_the_line(
    app: Celery, client: redis.Redis, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app.send_task("shop.add", countdown=5, task_id=value)
    (message,) = map(json.loads, client.lrange(app.conf.task_default_queue, 0, -1))
    assert message["headers"]["id"] == value
    assert StoredTasks.of(app).count() == 0
    (line,) = [record.getMessage() for record in caplog.records if "waits in the broker" in record.getMessage()]
    assert len(line) < 300


@on_redis
@pytest.mark.parametrize("value", [5, "{x}", "a:b*?", "é№", "x" * 255, " ", '"\\', "application", "null"])
def test_unusual_task_id_is_kept(app: Celery, broker: Broker, value: Any) -> None:
    app.send_task("shop.add", countdown=5, task_id=value)

    assert stored(app) == [str(value)]
    assert deliver(app).sent == 1
    assert [message.headers["id"] for message in broker.take(app.conf.task_default_queue)] == [value]


@on_redis
def test_empty_task_id_is_replaced(app: Celery) -> None:
    result = app.send_task("shop.add", countdown=5, task_id="")

    assert stored(app) == [result.id]


@on_redis
@pytest.mark.parametrize("value", ["x" * 513, "x" * 1_000_000, "\ud800"], ids=lambda value: ascii(value)[:12])
def test_queue_with_an_invalid_list_name_is_refused(app: Celery, client: redis.Redis, value: str) -> None:
    refused(client, InvalidValueError, "destination=", lambda: app.send_task("shop.add", countdown=5, queue=value))


@on_redis
@pytest.mark.parametrize("value", [" ", "\x06\x16", "{}", "}{", "a:b", "*?[a]", "%s", "№", "a\r\nb", "x" * 500])
def test_unusual_queue_name_gets_its_message(app: Celery, client: redis.Redis, value: str) -> None:
    app.send_task("shop.add", countdown=5, queue=value)

    assert deliver(app).sent == 1
    assert client.llen(value) == 1


@on_redis
@pytest.mark.parametrize("value", [0, 9, 99, -1, "5", "high", 1.5, True, math.nan, 10**30])
def test_priority_selects_the_same_list_as_kombu(app: Celery, client: redis.Redis, value: Any) -> None:
    queue = app.conf.task_default_queue
    app.send_task("shop.add", priority=value)
    (expected,) = client.keys(f"{queue}*")
    client.delete(expected)

    app.send_task("shop.add", priority=value, countdown=5)

    assert deliver(app).sent == 1
    assert client.keys(f"{queue}*") == [expected]


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
@pytest.mark.parametrize("options", [{"priority": 256}, {"queue": "x" * 300}])
def test_message_that_rabbitmq_refuses_is_put_back_and_blocks_no_others(
    app: Celery, broker: Broker, client: redis.Redis, options: dict[str, Any]
) -> None:
    for number, more in enumerate(({}, options, {})):
        app.send_task("shop.add", countdown=5, task_id=f"order-{number}", **more)

    assert deliver(app).sent == 2
    assert sorted(broker.take_ids(app.conf.task_default_queue)) == ["order-0", "order-2"]
    assert stored(app) == ["order-1"]


@on_redis
@pytest.mark.parametrize("argument", [object(), {1}, open], ids=lambda value: type(value).__name__)
def test_argument_that_cannot_be_serialized_is_refused_as_without_a_delay(
    app: Celery, client: redis.Redis, argument: Any
) -> None:
    for delay in ({}, {"countdown": 5}):
        with pytest.raises(EncodeError):
            app.send_task("shop.add", [argument], **delay)
    assert client.keys() == []


@on_redis
@pytest.mark.parametrize("argument", [math.nan, -math.inf, b"\xff\x00", "\ud800", 10**300])
def test_argument_that_celery_serializes_arrives(app: Celery, broker: Broker, argument: Any) -> None:
    app.send_task("shop.add", [argument], countdown=5)

    assert deliver(app).sent == 1
    (message,) = broker.take(app.conf.task_default_queue)
    assert repr(message.payload[0]) == repr([argument])


@on_redis
def test_a_message_over_the_limit_is_refused(app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redis_queue.celery.store.MAX_BODY", 2000)

    refused(client, BodyError, "must be at most max_body=2000", lambda: app.send_task("x", ["x" * 2000], countdown=5))


@on_redis
@pytest.mark.parametrize("value", [math.nan, math.inf, -1, "24", True, None, 10**400, 1e9])
def test_a_forecast_of_no_hours_is_refused(app: Celery, client: redis.Redis, value: Any) -> None:
    refused(client, InvalidDelayError, "=", lambda: StoredTasks.of(app).forecast(value))


@on_redis
@pytest.mark.parametrize("value", [0, -1, 501, 1.5, "24", True, None])
def test_a_forecast_of_no_buckets_is_refused(app: Celery, client: redis.Redis, value: Any) -> None:
    refused(client, InvalidValueError, f"buckets={value!r}", lambda: StoredTasks.of(app).forecast(buckets=value))


@on_redis
class TestRetry:
    """Celery drops a task whose retry raises, so an unstorable retry goes to the broker."""

    @pytest.mark.parametrize(
        ("task_id", "delay"),
        [
            ("a\nb", {"countdown": 60}),
            ("x" * 300, {"countdown": 60}),
            ("order-42", {"countdown": TEN_YEARS + 60}),
            ("order-42", {"eta": datetime(2080, 1, 1, tzinfo=timezone.utc)}),
        ],
        ids=["a strange id", "a long id", "a long time", "a far day"],
    )
    def test_unstorable_retry_waits_in_the_broker(
        self, app: Celery, broker: Broker, caplog: pytest.LogCaptureFixture, task_id: str, delay: dict[str, Any]
    ) -> None:
        task = app.tasks["shop.add"]

        with running(task, task_id, 1, 2), pytest.raises(Retry):
            task.retry(**delay)

        (message,) = broker.take(app.conf.task_default_queue)
        assert (message.headers["id"], message.headers["retries"]) == (task_id, 1)
        assert message.headers["eta"]
        assert stored(app) == []
        (record,) = (found for found in caplog.records if vars(found).get("action") == "store_refused")
        assert vars(record)["task_id"] == task_id

    def test_too_large_retry_waits_in_the_broker(
        self, app: Celery, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("redis_queue.celery.store.MAX_BODY", 2000)
        task = app.tasks["shop.add"]

        with running(task, "order-42", "x" * 3000, 2), pytest.raises(Retry):
            task.retry(countdown=60)

        assert broker.take_ids(app.conf.task_default_queue) == ["order-42"]

    @pytest.mark.parametrize("delay", [{"countdown": 60, "eta": NOW}, {"countdown": True}, {"eta": date(2030, 1, 1)}])
    def test_delay_is_read_as_in_celery(self, app: Celery, delay: dict[str, Any]) -> None:
        task = app.tasks["shop.add"]

        with running(task, "order-42", 1, 2), pytest.raises(Retry):
            task.retry(**delay)

        assert stored(app) == ["order-42"]

    def test_other_tasks_sent_within_a_retry_are_still_checked(self, app: Celery, client: redis.Redis) -> None:
        with running(app.tasks["shop.add"], "order-42", 1, 2):
            refused(client, InvalidDelayError, "countdown=True", lambda: app.send_task("other", countdown=True))
            refused(client, InvalidDelayError, "eta=", lambda: app.send_task("other", eta="tomorrow"))


@on_redis
class TestAnywhere:
    def test_within_a_running_event_loop(self, app: Celery) -> None:
        async def view() -> str:
            return str(app.tasks["shop.add"].apply_async((1, 2), countdown=60).id)

        task_id = asyncio.run(view())
        assert stored(app) == [task_id]

    def test_while_the_interpreter_shuts_down(self, app: Celery, client: redis.Redis) -> None:
        code = (
            "import atexit, sys\n"
            "from celery import Celery\n"
            "from redis_queue.celery import DurableTasks\n"
            "app = Celery('late', broker=sys.argv[1])\n"
            "app.conf.redis_queue_url = sys.argv[2]\n"
            "DurableTasks(app, leases=False)\n"
            "atexit.register(lambda: app.send_task('shop.add', countdown=60, task_id='the last'))\n"
        )
        command = [sys.executable, "-c", code, app.conf.broker_url, app.conf.redis_queue_url]

        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

        assert (done.returncode, done.stderr) == (0, "")
        assert stored(app) == ["the last"]
