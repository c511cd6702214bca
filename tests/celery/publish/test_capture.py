"""DurableTasks: every delayed publish is stored unchanged, and the sent message equals one without a delay."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery, chain, chord, group, signature
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import after_task_publish, before_task_publish
from click.testing import CliRunner
from kombu.compression import encoders
from kombu.exceptions import OperationalError

from redis_queue import ConfigurationError
from redis_queue.celery import DurableTasks
from redis_queue.celery.message.headers import CALL, ETA, OWN, SENT
from redis_queue.celery.publish.send import OwnBroker
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.model import Entry
from tests.support.celery.brokers import (
    Broker,
    connect,
    declared,
    deliver,
    dispatch,
    exchange_of,
    running,
    stored_messages,
)
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

HOUR = 3600
SERIALIZERS = ["json", "pickle", "yaml", "msgpack"]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"]


@pytest.fixture
def on_redis(redis_server: RedisServer, client: redis.Redis) -> Iterator[Broker]:
    """A Redis broker that is also the store."""
    with Broker(f"redis+socket://{redis_server.socket}") as broker:
        yield broker


@pytest.fixture
def on_rabbitmq(rabbitmq_url: str, client: redis.Redis) -> Iterator[Broker]:
    """A RabbitMQ; the store is empty."""
    with Broker(rabbitmq_url) as broker:
        yield broker


@pytest.fixture
def app(on_redis: Broker, redis_url: str) -> Celery:
    """An app whose delays are captured, with two tasks."""
    return capturing(on_redis, redis_url)


def capturing(broker: Broker, store: str, **settings: Any) -> Celery:
    """Return a new app on *broker* whose delays are captured."""
    app = plain(broker, redis_queue_url=store, **settings)
    DurableTasks(app, leases=False)
    return app


def plain(broker: Broker, **settings: Any) -> Celery:
    """Return a new app on *broker* without the extension."""
    app = broker.app(**{"accept_content": SERIALIZERS, "result_backend": "disabled://", **settings})

    @app.task(name="shop.add", shared=False)  # type: ignore[untyped-decorator]
    def add(x: float, y: float) -> float:
        return x + y

    @app.task(name="shop.collect", shared=False)  # type: ignore[untyped-decorator]
    def collect(numbers: list[float]) -> float:
        return sum(numbers)

    return app


def entries(app: Celery) -> list[Entry]:
    return StoredTasks.of(app).queue.list(limit=500)


def tasks(app: Celery) -> list[str]:
    """Return the names of the stored tasks, by due time."""
    return [entry.task for entry in StoredTasks.of(app).list()]


def default_of(app: Celery) -> str:
    name: str = app.conf.task_default_queue
    return name


def seconds_left(entry: Entry) -> float:
    """Return in how many seconds an entry is due."""
    return (entry.due_at - datetime.now(timezone.utc)).total_seconds()


def due_in_an_hour(app: Celery) -> bool:
    """Return whether entries exist and all are due in an hour."""
    found = entries(app)
    return bool(found) and all(HOUR - 30 < seconds_left(entry) <= HOUR + 1 for entry in found)


@contextmanager
def listening(signal: Any, receiver: Callable[..., None]) -> Iterator[None]:
    """Connect *receiver* for the block."""
    signal.connect(receiver)
    try:
        yield
    finally:
        signal.disconnect(receiver)


def beat(app: Celery) -> None:
    scheduler = app.Beat(quiet=True).Service(app).get_scheduler(lazy=True)
    entry = scheduler.Entry(
        name="nightly", task="shop.add", args=(1, 2), schedule=60, options={"countdown": HOUR}, app=app
    )
    with app.connection_for_write() as connection:
        scheduler.apply_async(entry, producer=app.amqp.Producer(connection, auto_declare=False), advance=False)


def retry(app: Celery) -> None:
    task = app.tasks["shop.add"]
    with running(task, "retried", 1, 2), pytest.raises(Retry):
        task.retry(countdown=HOUR)


def replace_within(app: Celery) -> None:
    task = app.tasks["shop.add"]
    with running(task, "replaced", 1, 2, delivery_info={}), pytest.raises(Ignore):
        task.replace(add(app, 3, 4).set(countdown=HOUR))


def add(app: Celery, *args: Any) -> Any:
    return app.tasks["shop.add"].s(*args)


# Each way to publish, with the names of the tasks that are stored at once.
WAYS: dict[str, tuple[Callable[[Celery], Any], list[str]]] = {
    "apply_async": (lambda app: app.tasks["shop.add"].apply_async((1, 2), countdown=HOUR), ["shop.add"]),
    "send_task": (lambda app: app.send_task("shop.elsewhere", (1, 2), countdown=HOUR), ["shop.elsewhere"]),
    "signature": (lambda app: add(app, 1, 2).apply_async(countdown=HOUR), ["shop.add"]),
    "immutable signature": (lambda app: app.tasks["shop.add"].si(1, 2).apply_async(countdown=HOUR), ["shop.add"]),
    "set": (lambda app: add(app, 1, 2).set(countdown=HOUR).delay(), ["shop.add"]),
    "unregistered signature": (
        lambda app: app.signature("shop.elsewhere", (1,)).apply_async(countdown=HOUR),
        ["shop.elsewhere"],
    ),
    "group": (lambda app: group(add(app, n, n) for n in range(3)).apply_async(countdown=HOUR), ["shop.add"] * 3),
    "group of set": (
        lambda app: group(add(app, n, n).set(countdown=HOUR) for n in range(2)).apply_async(),
        ["shop.add"] * 2,
    ),
    "chain": (lambda app: chain(add(app, 1, 2), add(app, 3)).apply_async(countdown=HOUR), ["shop.add"]),
    "first of a chain": (
        lambda app: chain(add(app, 1, 2).set(countdown=HOUR), add(app, 3)).apply_async(),
        ["shop.add"],
    ),
    "nested canvas": (
        lambda app: group(chain(add(app, n, 1).set(countdown=HOUR), add(app, 2)) for n in range(2)).apply_async(),
        ["shop.add"] * 2,
    ),
    "chunks": (
        lambda app: app.tasks["shop.add"].chunks([(1, 2), (3, 4)], 1).apply_async(countdown=HOUR),
        ["celery.starmap"] * 2,
    ),
    "map": (lambda app: app.tasks["shop.collect"].map([[1], [2]]).apply_async(countdown=HOUR), ["celery.map"]),
    "replace": (replace_within, ["shop.add"]),
    "retry": (retry, ["shop.add"]),
    "beat": (beat, ["shop.add"]),
}


class TestExplicitConnection:
    @pytest.fixture
    def other(self, redis_server: RedisServer) -> Iterator[Broker]:
        """Another database of the same Redis."""
        with Broker(f"redis+socket://{redis_server.socket}?virtual_host=5") as broker:
            yield broker

    @pytest.mark.parametrize("how", ["connection", "producer"])
    def test_to_another_broker_sends_there_with_and_without_a_delay(
        self, app: Celery, other: Broker, on_redis: Broker, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = other.name()
        with connect(other.url) as connection:
            given = {how: connection if how == "connection" else app.amqp.Producer(connection, auto_declare=False)}
            now, later, *_ = [
                app.send_task("shop.add", (1, 2), queue=queue, **given, **delay)
                for delay in ({}, {"countdown": HOUR}, {"countdown": HOUR})
            ]

        assert entries(app) == []
        assert on_redis.take(queue) == []
        first, second, _ = other.take(queue)
        assert (first.headers["id"], first.headers["eta"]) == (now.id, None)
        assert second.headers["id"] == later.id
        assert second.headers["eta"]
        told = [record for record in caplog.records if "wait there" in record.getMessage()]
        assert [record.action for record in told] == ["other_broker"]

    def test_to_the_same_broker_stores(self, app: Celery, on_redis: Broker) -> None:
        with connect(on_redis.url) as connection:
            app.send_task("shop.add", (1, 2), countdown=HOUR, connection=connection)
        with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
            app.send_task("shop.add", (1, 2), countdown=HOUR, producer=producer)

        assert len(entries(app)) == 2

    def test_of_send_many_waits_in_another_broker(self, app: Celery, other: Broker) -> None:
        signature = app.tasks["shop.add"].s(1, 2)
        with connect(other.url) as connection:
            (sent,) = DurableTasks(app, leases=False).send_many([signature.set(connection=connection)], countdown=HOUR)

        assert entries(app) == []
        assert other.take_ids(default_of(app)) == [sent.id]


@pytest.mark.parametrize(
    ("own", "given", "same"),
    [
        ("redis://one", "redis://one:6379/0", True),
        ("redis://one/0", "redis://me:secret@one/", True),
        ("redis://one/0", "redis://one/1", False),
        ("redis://one/0", "redis://one:6380/0", False),
        ("redis://one/0", "rediss://one/0?ssl_cert_reqs=none", True),
        ("redis://one/0", "amqp://one//", False),
        ("amqp://one", "pyamqp://guest:guest@one:5672//", True),
        ("amqp://one//", "amqp://one/shop", False),
        ("redis://one/0;redis://two/0", "redis://one/0;redis://two/0", True),
        ("redis://one/0;redis://two/0", "redis://two/0", False),
        ("memory://", "memory://", True),
    ],
)
def test_brokers_are_compared_by_address(own: str, given: str, same: bool) -> None:
    app = Celery("tests", broker=own, set_as_current=False)
    broker = OwnBroker(app)
    with connect(given) as connection:
        assert [broker.is_that_of(connection) for _ in range(2)] == [same, same]


def test_connection_of_the_pool_belongs_to_the_broker_after_a_failover() -> None:
    app = Celery("tests", broker="redis://one/0;redis://two/0", set_as_current=False)
    broker = OwnBroker(app)
    with app.connection_for_write() as connection:
        for pooled in (connection, connection.clone()):
            pooled.switch("redis://two/0")
            assert broker.is_that_of(pooled)


def test_same_server_with_other_queue_names_is_another_broker() -> None:
    app = Celery("tests", broker="redis://one/0", set_as_current=False)
    app.conf.broker_transport_options = {"global_keyprefix": "a:"}
    broker = OwnBroker(app)
    with connect("redis://one/0", transport_options={"global_keyprefix": "a:"}) as connection:
        assert broker.is_that_of(connection)
    with connect("redis://one/0") as connection:
        assert not broker.is_that_of(connection)


class TestEveryWayToPublish:
    @pytest.mark.parametrize("protocol", [1, 2])
    @pytest.mark.parametrize("way", WAYS)
    def test_is_stored_and_nothing_is_sent_before_it_is_due(
        self, on_redis: Broker, redis_url: str, way: str, protocol: int
    ) -> None:
        app = capturing(on_redis, redis_url, task_protocol=protocol)
        send, names = WAYS[way]

        send(app)

        assert tasks(app) == names
        assert due_in_an_hour(app)
        assert dispatch(app).sent == 0
        assert on_redis.take(default_of(app)) == []
        assert deliver(app).sent == len(names)
        assert len(on_redis.take(default_of(app))) == len(names)

    def test_chord_header(self, on_redis: Broker, redis_url: str) -> None:
        app = capturing(on_redis, redis_url, result_backend=on_redis.url)

        chord([add(app, n, n).set(countdown=HOUR) for n in range(2)], app.tasks["shop.collect"].s()).apply_async()

        assert tasks(app) == ["shop.add"] * 2
        assert due_in_an_hour(app)

    def test_celery_call(self, app: Celery) -> None:
        from celery.bin.base import CLIContext
        from celery.bin.call import call

        context = CLIContext(app=app, no_color=True, workdir=None)
        arguments = ["shop.add", "--args", "[1, 2]", "--countdown", str(HOUR)]

        result = CliRunner().invoke(call, arguments, obj=context)

        assert result.exit_code == 0, result.output
        assert tasks(app) == ["shop.add"]
        assert due_in_an_hour(app)

    def test_without_a_delay_is_sent_at_once(self, app: Celery, on_redis: Broker) -> None:
        for options in ({}, {"countdown": 0}, {"countdown": None}, {"eta": None}):
            add(app, 1, 2).apply_async(**options)

        assert entries(app) == []
        assert len(on_redis.take(default_of(app))) == 4

    def test_with_the_same_task_id_replaces(self, app: Celery, on_redis: Broker) -> None:
        add(app, 1, 1).apply_async(task_id="form-7", countdown=60)
        add(app, 2, 2).apply_async(task_id="form-7", countdown=HOUR)

        assert due_in_an_hour(app)
        assert deliver(app).sent == 1
        (message,) = on_redis.take(default_of(app))
        assert (message.headers["id"], message.payload[0]) == ("form-7", [2, 2])

    def test_eta_replaces_a_countdown_of_the_same_id(self, app: Celery) -> None:
        add(app, 1, 1).apply_async(task_id="form-7", countdown=60)
        add(app, 1, 1).apply_async(task_id="form-7", eta=datetime.now(timezone.utc) + timedelta(hours=1))

        assert due_in_an_hour(app)

    def test_message_created_by_other_code_is_due_at_its_eta(self, app: Celery) -> None:
        add(app, 1, 1).apply_async(task_id="form-7", countdown=60)
        message = app.amqp.as_task_v2("order-42", "shop.add", (1, 2), {}, eta=seconds_from_now(HOUR))
        with app.producer_pool.acquire(block=True) as producer:
            app.amqp.send_task_message(producer, "shop.add", message)

        assert [entry.id for entry in entries(app)] == ["form-7", "order-42"]
        assert seconds_left(entries(app)[1]) == pytest.approx(HOUR, abs=30)


class TestDue:
    @pytest.mark.parametrize("enable_utc", [True, False])
    @pytest.mark.parametrize("zone", ZONES)
    def test_time_does_not_depend_on_the_zone_of_the_app(
        self, on_redis: Broker, redis_url: str, zone: str, *, enable_utc: bool
    ) -> None:
        app = capturing(on_redis, redis_url, timezone=zone, enable_utc=enable_utc)
        berlin = ZoneInfo("Europe/Berlin")
        etas = {
            "winter": datetime(2027, 1, 15, 12, tzinfo=berlin),
            "summer": datetime(2027, 7, 15, 12, tzinfo=berlin),
            "first 02:30": datetime(2027, 10, 31, 2, 30, tzinfo=berlin),
            "second 02:30": datetime(2027, 10, 31, 2, 30, tzinfo=berlin, fold=1),
            "offset": datetime(2027, 1, 15, 12, 0, 0, 123000, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
        }
        naive = {"naive winter": datetime(2027, 1, 15, 12), "naive summer": datetime(2027, 7, 15, 12)}
        for name, eta in {**etas, **naive}.items():
            add(app, 1, 2).apply_async(task_id=name, eta=eta)
        add(app, 1, 2).apply_async(task_id="text", eta=etas["winter"].isoformat())

        due = {entry.id: entry.due_at for entry in entries(app)}
        # A worker reads a naive eta as UTC, in any time zone of the app.
        expected = {name: eta.replace(tzinfo=timezone.utc) for name, eta in naive.items()}
        expected |= {name: eta.astimezone(timezone.utc) for name, eta in etas.items()}
        assert due == expected | {"text": etas["winter"].astimezone(timezone.utc)}

    @pytest.mark.parametrize("zone", ZONES)
    @pytest.mark.parametrize("countdown", [0.25, 1, 90.5, HOUR])
    def test_countdown_counts_from_now(self, on_redis: Broker, redis_url: str, zone: str, countdown: float) -> None:
        app = capturing(on_redis, redis_url, timezone=zone)
        add(app, 1, 2).apply_async(countdown=countdown)

        (entry,) = entries(app)
        assert (entry.due_at - entry.put_at).total_seconds() == pytest.approx(countdown, abs=0.002)

    @pytest.mark.parametrize("eta", [datetime(2020, 1, 1, tzinfo=timezone.utc), datetime(1960, 1, 1)])
    def test_an_eta_in_the_past_is_due_at_once(self, app: Celery, on_redis: Broker, eta: datetime) -> None:
        add(app, 1, 2).apply_async(eta=eta)

        assert dispatch(app).sent == 1
        (message,) = on_redis.take(default_of(app))
        assert message.headers["eta"] is None


OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    **{f"priority {number}": {"priority": number} for number in (0, 5, 9)},
    **{f"serializer {name}": {"serializer": name} for name in SERIALIZERS},
    **{f"compression {name}": {"compression": name} for name in sorted(encoders())},
    "pickle and zlib": {"serializer": "pickle", "compression": "zlib"},
    "headers": {"headers": {"tenant": "acme", "nested": {"numbers": [1, None, 2.5]}, "text": "№ \x81 \\u0081"}},
    "stamps": {"stamped_headers": ["order", "tags"], "order": "42", "tags": ["a", "b"]},
    "expires": {"expires": datetime(2030, 1, 1, tzinfo=timezone.utc)},
    "shadow": {"shadow": "add for order 42"},
    "ignore_result": {"ignore_result": True},
    "limits": {"time_limit": 30, "soft_time_limit": 20.5},
    "no retry": {"retry": False, "retry_policy": {"max_retries": 1, "retry_errors": (OSError,)}},
    "transient": {"delivery_mode": "transient"},
    "property": {"app_id": "shop", "type": "order"},
    "timeouts": {"timeout": 5, "confirm_timeout": 5},
    "argsrepr": {"argsrepr": "<secret>", "kwargsrepr": "{'card': '***'}"},
    "link": {"link": signature("shop.done", (1,)), "link_error": signature("shop.failed", queue="mail")},
    "ids": {"root_id": "the root", "parent_id": "the parent", "group_id": "the group", "group_index": 3},
}


def without_own(headers: dict[str, Any]) -> dict[str, Any]:
    """Return the headers without those that the extension adds."""
    return {name: value for name, value in headers.items() if name not in OWN}


def facts(message: Any) -> dict[str, Any]:
    """Return the parts of a message that must not depend on its delay."""
    body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
    properties = {
        name: value
        for name, value in message.properties.items()
        if name not in ("delivery_tag", "body_encoding", "expiration", "delivery_info")
    }
    if "application_headers" in properties:
        properties["application_headers"] = without_own(properties["application_headers"])
    return {
        "body": body,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "headers": without_own(message.headers),
        "properties": properties,
        "exchange": message.delivery_info["exchange"],
        "routing_key": message.delivery_info["routing_key"],
    }


class TestDeliveredMessage:
    @pytest.mark.parametrize("option", OPTIONS)
    @pytest.mark.parametrize("protocol", [1, 2])
    def test_equals_the_message_without_a_delay(
        self, broker: Broker, redis_url: str, option: str, protocol: int
    ) -> None:
        at_once = plain(broker, task_protocol=protocol)
        app = capturing(broker, redis_url, task_protocol=protocol, task_default_queue=default_of(at_once))
        options = {"task_id": "order-42-again", "reply_to": "somebody", **OPTIONS[option]}

        add(at_once, 1, 2).apply_async(**options)
        add(app, 1, 2).apply_async(**options, countdown=HOUR)
        (expected,) = broker.take(default_of(app))
        assert deliver(app).sent == 1
        (message,) = broker.take(default_of(app))

        assert facts(message) == facts(expected)
        assert set(message.headers) - set(expected.headers) == {ETA, CALL, SENT}

    def test_keeps_any_argument(self, app: Celery, on_redis: Broker) -> None:
        arguments = ["№ 🐍", "\x81 \\u0081 \x80", "\ud800", '"}}', {"__type": 1}, None, 2**70, 0.1, "a" * 100_000]
        add(app, arguments, arguments).apply_async(countdown=HOUR)

        assert deliver(app).sent == 1
        (message,) = on_redis.take(default_of(app))
        assert message.payload[0] == [arguments, arguments]

    def test_has_the_remaining_time_to_live(self, broker: Broker, redis_url: str) -> None:
        app = capturing(broker, redis_url)
        add(app, 1, 2).apply_async(countdown=60, expires=HOUR)

        (entry,) = StoredTasks.of(app).list()
        assert entry.expires_at is not None
        assert HOUR - 30 < (entry.expires_at - datetime.now(timezone.utc)).total_seconds() <= HOUR
        assert deliver(app).sent == 1
        (message,) = broker.take(default_of(app))
        if broker.url.startswith("amqp"):
            assert (HOUR - 30) * 1000 < int(message.properties["expiration"]) <= HOUR * 1000

    @pytest.mark.parametrize("broker", ["redis", "another redis", "rabbitmq"], indirect=True)
    def test_is_sent_to_a_worker_even_if_expired(self, broker: Broker, redis_url: str) -> None:
        app = capturing(broker, redis_url)
        add(app, 1, 2).apply_async(countdown=60, expires=0.001)
        wait_until(lambda: stored_messages(app)[0].expires_at, description="an expiry")

        assert deliver(app).sent == 1
        (message,) = broker.take(default_of(app))
        assert "expiration" not in message.properties
        assert datetime.fromisoformat(message.headers["expires"]) < datetime.now(timezone.utc)

    def test_replies_to_the_app_that_sent_it(self, on_rabbitmq: Broker, redis_url: str) -> None:
        app = capturing(on_rabbitmq, redis_url, result_backend="rpc://")
        result = add(app, 1, 2).apply_async(countdown=HOUR)
        on_rabbitmq.forget_later(app.thread_oid)

        assert deliver(app).sent == 1
        (message,) = on_rabbitmq.take(default_of(app))
        assert message.properties["reply_to"] == app.thread_oid
        assert message.properties["correlation_id"] == result.id


class TestRoutes:
    @pytest.mark.parametrize(
        "routes",
        [
            lambda mail: {"shop.*": {"queue": mail, "priority": 4}},
            lambda mail: [lambda *_, **__: {"queue": mail, "priority": 4}],
        ],
        ids=["dict", "function"],
    )
    def test_of_the_app_apply(self, broker: Broker, redis_url: str, routes: Any) -> None:
        mail = broker.name("mail")
        app = capturing(broker, redis_url, task_routes=routes(mail))

        add(app, 1, 2).apply_async(countdown=HOUR)

        (entry,) = StoredTasks.of(app).list()
        assert (entry.queue, entry.priority) == (mail, 4)
        assert deliver(app).sent == 1
        (message,) = broker.take(mail)
        assert message.properties["priority"] == 4

    def test_a_queue_named_in_the_call_wins(self, broker: Broker, redis_url: str) -> None:
        slow = broker.name("slow")
        app = capturing(broker, redis_url)

        add(app, 1, 2).apply_async(countdown=HOUR, queue=slow)

        assert deliver(app).sent == 1
        assert len(broker.take(slow)) == 1

    @pytest.mark.parametrize("by_object", [True, False], ids=["a queue object", "exchange and key"])
    def test_lead_through_a_topic_exchange(self, broker: Broker, redis_url: str, *, by_object: bool) -> None:
        mail, events = broker.name("mail"), broker.name("events")
        queue = declared(mail, exchange_of(events, "topic"), routing_key="order.*")
        app = capturing(broker, redis_url, task_queues=[queue])
        with connect(broker.url) as connection:
            queue(connection.default_channel).declare()
        options = {"queue": queue} if by_object else {"exchange": events, "declare": [queue]}

        add(app, 1, 2).apply_async(countdown=HOUR, routing_key="order.late", **options)

        assert deliver(app).sent == 1
        (message,) = broker.take(mail)
        assert (message.delivery_info["exchange"], message.delivery_info["routing_key"]) == (events, "order.late")

    def test_lead_to_the_queues_of_a_fanout_exchange(self, broker: Broker, redis_url: str, client: redis.Redis) -> None:
        queue = declared(broker.name("one"), exchange_of(broker.name("news"), "fanout"), routing_key="news")
        app = capturing(broker, redis_url, task_queues=[queue])
        found: list[Any] = []
        with connect(broker.url) as connection:
            consumer = connection.Consumer([queue], on_message=found.append, no_ack=True)

            def drained() -> list[Any]:
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.05)
                return found

            with consumer:
                if not broker.url.startswith("amqp"):
                    wait_until(lambda: drained() or client.pubsub_numpat(), description="a subscription")
                add(app, 1, 2).apply_async(task_id="order-42", countdown=HOUR, queue=queue)
                assert deliver(app).sent == 1
                wait_until(drained, description="the message")

        assert [message.headers["id"] for message in found] == ["order-42"]

    @pytest.mark.parametrize("arguments", [{"expires": 30}, {"queue_arguments": {"x-expires": 30_000}}])
    def test_lead_to_a_queue_that_expires(
        self, broker: Broker, redis_url: str, client: redis.Redis, arguments: dict[str, Any]
    ) -> None:
        brief = broker.name("brief")
        app = capturing(broker, redis_url, task_queues=[declared(brief, routing_key=brief, **arguments)])

        add(app, 1, 2).apply_async(countdown=HOUR, queue=brief, priority=9)

        assert deliver(app).sent == 1
        if not broker.url.startswith("amqp"):
            (key,) = client.keys(f"{brief}*")
            assert 0 < int(client.pttl(key)) <= 30_000
        assert len(broker.take(brief)) == 1

    def test_lead_to_a_queue_with_priorities(self, on_rabbitmq: Broker, redis_url: str) -> None:
        urgent = on_rabbitmq.name("urgent")
        queue = declared(urgent, routing_key=urgent, max_priority=10)
        app = capturing(on_rabbitmq, redis_url, task_queues=[queue])
        for priority in (1, 9, 5):
            add(app, priority, 0).apply_async(countdown=HOUR, queue=urgent, priority=priority)

        assert deliver(app).sent == 3
        assert [message.payload[0][0] for message in on_rabbitmq.take(urgent)] == [9, 5, 1]

    @pytest.mark.parametrize("declared_by", ["the app", "the call"])
    def test_keep_a_queue_object_that_the_app_does_not_know(
        self, broker: Broker, redis_url: str, declared_by: str
    ) -> None:
        own, exchange = broker.name("own"), broker.name("exchange")
        queue = declared(own, exchange_of(exchange, "direct"), routing_key="here", durable=declared_by == "the app")
        known = [queue] if declared_by == "the app" else []
        app = capturing(broker, redis_url, **({"task_queues": known} if known else {}))

        add(app, 1, 2).apply_async(countdown=HOUR, queue=queue)

        assert deliver(app).sent == 1
        assert len(broker.take(own)) == 1

    def test_bypass_the_native_delay_of_rabbitmq(self, on_rabbitmq: Broker, redis_url: str) -> None:
        mail, exchange = on_rabbitmq.name("mail"), on_rabbitmq.name("topic")
        quorum = {"x-queue-type": "quorum"}
        queue = declared(mail, exchange_of(exchange, "topic"), routing_key=mail, queue_arguments=quorum)
        app = capturing(on_rabbitmq, redis_url, task_queues=[queue], task_default_queue=mail)

        add(app, 1, 2).apply_async(countdown=HOUR, queue=mail)

        (envelope,) = stored_messages(app)
        assert envelope.exchange == "celery_delayed_delivery"
        assert envelope.routing_key == mail
        with native_delay(on_rabbitmq, queue) as delayed_natively:
            assert deliver(app).sent == 1
            (message,) = on_rabbitmq.take(mail)
            assert delayed_natively() == []
        assert message.headers["eta"] is None

    def test_lead_to_quorum_queues(self, on_rabbitmq: Broker, redis_url: str) -> None:
        app = capturing(on_rabbitmq, redis_url, task_default_queue_type="quorum", task_default_exchange_type="direct")

        add(app, 1, 2).apply_async(countdown=HOUR)

        assert due_in_an_hour(app)
        assert deliver(app).sent == 1
        assert len(on_rabbitmq.take(default_of(app))) == 1


@contextmanager
def native_delay(broker: Broker, queue: Any) -> Iterator[Callable[[], list[Any]]]:
    """Bind *queue* like a worker, and yield a function that returns the messages delayed by RabbitMQ."""
    spy = broker.name("spy")
    with connect(broker.url) as connection:
        channel = connection.default_channel
        first, last = exchange_of("celery_delayed_27", "topic"), exchange_of("celery_delayed_delivery", "topic")
        for exchange in (first, last):
            exchange(channel).declare()
        declared(spy, first, routing_key="#")(channel).declare()
        bound = queue(channel)
        bound.declare()
        bound.exchange.bind_to(last.name, routing_key=f"#.{queue.routing_key}")
    yield lambda: broker.take(spy)


class TestTimeOfScheduling:
    def test_signals_fire_once_with_the_real_eta(self, app: Celery) -> None:
        before: list[Any] = []
        after: list[Any] = []

        def on_before(sender: str, headers: Any, body: Any, properties: Any, **_: Any) -> None:
            before.append((sender, headers["eta"], body[0], properties["correlation_id"]))

        def on_after(sender: str, headers: Any, **_: Any) -> None:
            after.append((sender, headers["eta"]))

        eta = datetime(2027, 1, 15, 12, tzinfo=timezone.utc)
        with listening(before_task_publish, on_before), listening(after_task_publish, on_after):
            add(app, 1, 2).apply_async(task_id="order-42", eta=eta)
            fired = [(before[:], after[:])]
            assert deliver(app).sent == 1

        assert fired == [([("shop.add", eta.isoformat(), (1, 2), "order-42")], [("shop.add", eta.isoformat())])]
        assert (len(before), len(after)) == (1, 1)

    def test_tracing_headers_are_added(self, broker: Broker, redis_url: str) -> None:
        app = capturing(broker, redis_url)

        def inject(headers: Any, **_: Any) -> None:
            headers["traceparent"] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
            headers["baggage"] = {"tenant": "acme"}

        with listening(before_task_publish, inject):
            add(app, 1, 2).apply_async(countdown=HOUR)
        assert deliver(app).sent == 1

        (message,) = broker.take(default_of(app))
        assert message.headers["traceparent"].startswith("00-4bf9")
        assert message.headers["baggage"] == {"tenant": "acme"}

    def test_task_sent_event_is_sent_once(self, broker: Broker, redis_url: str, client: redis.Redis) -> None:
        events, seen = broker.name("events"), broker.name("seen")
        app = capturing(broker, redis_url, task_send_sent_event=True, event_exchange=events)
        with connect(broker.url) as connection, client.pubsub() as pubsub:
            pubsub.psubscribe("*")
            if broker.url.startswith("amqp"):
                declared(seen, exchange_of(events, "topic"), routing_key="#")(connection.default_channel).declare()

            add(app, 1, 2).apply_async(task_id="order-42", countdown=HOUR)
            assert deliver(app).sent == 1

            if broker.url.startswith("amqp"):
                found = [message.payload for message in broker.take(seen)]
            else:
                elements = [json.loads(data) for data in published(pubsub, events)]
                found = [json.loads(base64.b64decode(element["body"])) for element in elements]
        sent = [event for event in found if event["type"] == "task-sent"]
        assert [(event["uuid"], event["queue"]) for event in sent] == [("order-42", default_of(app))]
        assert sent[0]["eta"]


def published(pubsub: Any, exchange: str) -> list[bytes]:
    """Return the messages published to a fanout *exchange* since the subscription."""
    found = []
    while (message := pubsub.get_message(timeout=0.2)) is not None:
        if message["type"] == "pmessage" and exchange.encode() in message["channel"]:
            found.append(message["data"])
    return found


class TestNotCaptured:
    @pytest.mark.parametrize("form", [lambda s: {"countdown": s}, lambda s: {"eta": seconds_from_now(s)}])
    def test_delays_up_to_min_delay(self, on_redis: Broker, redis_url: str, form: Callable[[float], Any]) -> None:
        app = capturing(on_redis, redis_url, redis_queue_min_delay=60)

        add(app, 1, 2).apply_async(**form(59))
        add(app, 1, 2).apply_async(task_id="long", **form(90))

        assert [entry.id for entry in entries(app)] == ["long"]
        (message,) = on_redis.take(default_of(app))
        assert message.headers["eta"] is not None

    def test_chord_unlock(self, app: Celery, on_redis: Broker) -> None:
        app.send_task("celery.chord_unlock", countdown=HOUR)

        assert entries(app) == []
        assert len(on_redis.take(default_of(app))) == 1

    def test_eager_tasks(self, on_redis: Broker, redis_url: str) -> None:
        app = capturing(on_redis, redis_url, task_always_eager=True)

        assert add(app, 1, 2).apply_async(countdown=HOUR).get() == 3
        assert entries(app) == []

    def test_apps_without_the_extension(self, app: Celery, on_redis: Broker) -> None:
        other = plain(on_redis)

        add(other, 1, 2).apply_async(countdown=HOUR)

        assert entries(app) == []
        assert len(on_redis.take(default_of(other))) == 1


def seconds_from_now(seconds: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


def test_a_channel_that_kombu_has_closed_is_a_lost_connection(app: Celery) -> None:
    message = app.amqp.create_task_message("an-id", "shop.add", (1, 2))
    with app.producer_or_acquire() as producer:
        add(app, 1, 2).apply_async(producer=producer)
        # After an outage, kombu does so; without a declared queue it uses the channel again.
        producer.channel.close()
        with pytest.raises(OperationalError, match="send again"):
            app.amqp.send_task_message(producer, "shop.add", message, exchange="", routing_key="mail", retry=False)


class TestUnavailableStore:
    @pytest.fixture
    def nowhere(self) -> Iterator[str]:
        """The URL of a killed store."""
        with RedisServer(tcp=True) as server:
            url = server.url
            server.kill()
            yield url

    @pytest.mark.parametrize("policy", [None, "raise"])
    @pytest.mark.parametrize("options", [{}, {"retry": False}, {"retry_policy": {"max_retries": 1}}])
    def test_is_an_operational_error_for_a_client(
        self, on_redis: Broker, nowhere: str, policy: str | None, options: dict[str, Any]
    ) -> None:
        app = capturing(on_redis, nowhere, redis_queue_on_store_error=policy)

        with pytest.raises(OperationalError):
            add(app, 1, 2).apply_async(countdown=HOUR, **options)
        assert on_redis.take(default_of(app)) == []

    def test_sends_a_delay_to_the_broker_if_configured(
        self, on_redis: Broker, nowhere: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = capturing(on_redis, nowhere, redis_queue_on_store_error="broker")

        add(app, 1, 2).apply_async(task_id="order-42", eta=seconds_from_now(HOUR))

        (message,) = on_redis.take(default_of(app))
        assert message.headers["id"] == "order-42"
        assert datetime.fromisoformat(message.headers["eta"]) > seconds_from_now(HOUR - 60)
        assert warnings_of(caplog) == ["order-42"]

    @pytest.mark.parametrize("policy", [None, "broker"])
    def test_sends_a_retry_to_the_broker(
        self, on_redis: Broker, nowhere: str, caplog: pytest.LogCaptureFixture, policy: str | None
    ) -> None:
        app = capturing(on_redis, nowhere, redis_queue_on_store_error=policy)
        task = app.tasks["shop.add"]

        with running(task, "order-42", 1, 2), pytest.raises(Retry):
            task.retry(countdown=HOUR)

        (message,) = on_redis.take(default_of(app))
        assert (message.headers["id"], message.headers["retries"]) == ("order-42", 1)
        assert datetime.fromisoformat(message.headers["eta"]) > seconds_from_now(HOUR - 60)
        assert warnings_of(caplog) == ["order-42"]

    def test_drops_a_retry_if_configured(self, on_redis: Broker, nowhere: str) -> None:
        app = capturing(on_redis, nowhere, redis_queue_on_store_error="raise")
        task = app.tasks["shop.add"]

        with running(task, "order-42", 1, 2), pytest.raises(Reject):
            task.retry(countdown=HOUR)
        assert on_redis.take(default_of(app)) == []

    def test_is_an_error_for_another_task_sent_within_a_retry(self, on_redis: Broker, nowhere: str) -> None:
        app = capturing(on_redis, nowhere)

        with running(app.tasks["shop.add"], "order-42", 1, 2), pytest.raises(OperationalError):
            add(app, 1, 2).apply_async(countdown=HOUR)

    def test_is_tried_again_by_a_later_publish(
        self, on_redis: Broker, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = plain(on_redis, redis_queue_url=redis_url)
        send = app.amqp.send_task_message

        def send_again(*args: Any, **options: Any) -> Any:
            # Like Celery for the callbacks of a task.
            with suppress(OperationalError):
                return send(*args, **options)
            return send(*args, **options)

        app.amqp.send_task_message = send_again
        delayed = DurableTasks(app, leases=False)
        store, calls = delayed.writer.store, []

        def fail_once(*found: Any) -> Any:
            calls.append(found)
            if len(calls) == 1:
                raise OperationalError("away")
            return store(*found)

        monkeypatch.setattr(delayed.writer, "store", fail_once)
        add(app, 1, 2).apply_async(task_id="order-42", countdown=HOUR)

        assert [entry.id for entry in entries(app)] == ["order-42"]
        assert on_redis.take(default_of(app)) == []

    def test_full_store_is_an_operational_error(self, on_redis: Broker) -> None:
        with RedisServer() as server, server.client() as admin:
            app = capturing(on_redis, server.url)
            admin.config_set("maxmemory", "1")
            with pytest.raises(OperationalError):
                add(app, 1, 2).apply_async(countdown=HOUR, retry=False)

    def test_missing_store_is_a_configuration_error(self, on_rabbitmq: Broker) -> None:
        app = capturing(on_rabbitmq, "")

        with pytest.raises(ConfigurationError, match="redis_queue_url"):
            add(app, 1, 2).apply_async(countdown=HOUR)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the task ids of the warnings that the store is unavailable."""
    return [
        vars(record)["task_id"]
        for record in caplog.records
        if record.levelno == logging.WARNING and vars(record).get("action") == "store_unavailable"
    ]


class TestSendMany:
    def test_stores_500_per_round_trip(self, app: Celery, client: redis.Redis, on_redis: Broker) -> None:
        delayed = DurableTasks(app, leases=False)
        add(app, 0, 0).apply_async(countdown=HOUR)
        client.config_resetstat()

        results = delayed.send_many([add(app, n, n) for n in range(1200)], countdown=HOUR)

        calls: Any = client.info("commandstats")
        assert calls["cmdstat_evalsha"]["calls"] == 3
        assert delayed.count() == 1201
        stored = {entry.id: entry.args for entry in delayed.scan()}
        assert [stored[result.id] for result in results] == [f"({n}, {n})" for n in range(1200)]
        assert dispatch(app).sent == 0
        assert on_redis.take(default_of(app)) == []

    @pytest.mark.parametrize("countdown", [HOUR, timedelta(hours=1)])
    def test_adds_the_countdown_where_it_is_missing(self, app: Celery, countdown: Any) -> None:
        eta = datetime(2027, 1, 15, 12, tzinfo=timezone.utc)
        signatures = [add(app, 1, 2), add(app, 1, 2).set(countdown=60), add(app, 1, 2).set(eta=eta)]

        results = DurableTasks(app, leases=False).send_many(signatures, countdown=countdown)

        stored = {entry.id: entry for entry in entries(app)}
        assert seconds_left(stored[results[0].id]) == pytest.approx(HOUR, abs=30)
        assert seconds_left(stored[results[1].id]) == pytest.approx(60, abs=30)
        assert stored[results[2].id].due_at == eta

    def test_takes_groups_and_chains(self, app: Celery) -> None:
        delayed = DurableTasks(app, leases=False)

        delayed.send_many(
            [group(add(app, n, n) for n in range(3)), chain(add(app, 1, 2).set(countdown=60), add(app, 3))],
            countdown=HOUR,
        )

        assert tasks(app) == ["shop.add"] * 4

    @pytest.mark.parametrize("several", [False, True])
    def test_sends_calls_without_a_delay_at_once(self, app: Celery, on_redis: Broker, *, several: bool) -> None:
        signature = group(add(app, n, n) for n in range(3)) if several else add(app, 1, 2)

        first, _ = DurableTasks(app, leases=False).send_many([add(app, 1, 2).set(countdown=60), signature])

        assert [entry.id for entry in entries(app)] == [first.id]
        assert len(on_redis.take(default_of(app))) == (3 if several else 1)

    def test_leaves_short_delays_to_the_broker(self, on_redis: Broker, redis_url: str) -> None:
        app = capturing(on_redis, redis_url, redis_queue_min_delay=60)

        results = DurableTasks(app, leases=False).send_many(
            [add(app, 1, 2), add(app, 1, 2).set(countdown=90)], countdown=5
        )

        assert [entry.id for entry in entries(app)] == [results[1].id]
        assert on_redis.take_ids(default_of(app)) == [results[0].id]


class TestInstalling:
    def test_by_the_amqp_class(self, on_redis: Broker, redis_url: str) -> None:
        app = Celery("tests", amqp="redis_queue.celery:DelayedAMQP", set_as_current=False)
        app.conf.update(on_redis.settings(redis_queue_url=redis_url))

        app.send_task("shop.add", (1, 2), countdown=HOUR)

        assert due_in_an_hour(app)
        assert DurableTasks(app, leases=False) is DurableTasks(app, leases=False)
        app.send_task("shop.add", (1, 2), countdown=HOUR)
        assert len(entries(app)) == 2
        app.close()

    def test_twice_with_other_parts_is_refused(self, app: Celery) -> None:
        first = DurableTasks(app, leases=False)
        with pytest.raises(
            ConfigurationError, match=r"leases=True\): the app has .* delays=True, leases=False: call it once"
        ):
            DurableTasks(app)
        assert StoredTasks.of(app) is first

    def test_twice_is_a_no_op(self, app: Celery) -> None:
        first = DurableTasks(app, leases=False)
        assert DurableTasks(app, leases=False) is first

        fired: list[str] = []
        with listening(before_task_publish, lambda sender, **_: fired.append(sender)):
            add(app, 1, 2).apply_async(countdown=HOUR)

        assert fired == ["shop.add"]
        assert len(entries(app)) == 1
        assert len(app.steps["worker"]) == 2
        assert [option.opts for option in app.user_options["worker"]].count(["--without-dispatch"]) == 1

    def test_before_the_app_is_configured(self, on_redis: Broker, redis_url: str) -> None:
        app = Celery("tests", set_as_current=False)
        delayed = DurableTasks(app, leases=False)
        app.conf.update(on_redis.settings(redis_queue_url=redis_url, task_serializer="pickle", task_protocol=1))

        app.send_task("shop.add", (1, 2), countdown=HOUR)

        (envelope,) = stored_messages(app)
        assert envelope.content_type == "application/x-python-serialize"
        assert "task" not in envelope.headers
        assert envelope.routing_key == default_of(app)
        assert delayed.count() == 1
        app.close()

    def test_keeps_wrappers_of_the_publish_method(self, on_redis: Broker, redis_url: str) -> None:
        app = plain(on_redis, redis_queue_url=redis_url)
        send, seen = app.amqp.send_task_message, []

        def traced(producer: Any, name: str, *args: Any, **options: Any) -> Any:
            seen.append(name)
            return send(producer, name, *args, **options)

        app.amqp.send_task_message = traced
        DurableTasks(app, leases=False)
        add(app, 1, 2).apply_async(countdown=HOUR)

        assert seen == ["shop.add"]
        assert len(entries(app)) == 1

    def test_calls_a_mock_in_the_class_of_the_app(self, on_redis: Broker, redis_url: str) -> None:
        app = capturing(on_redis, redis_url)

        with mock.patch.object(Celery, "send_task") as send:
            assert add(app, 1, 2).apply_async() is send.return_value

    def test_stores_in_the_broker_by_default(self, on_redis: Broker, client: redis.Redis) -> None:
        app = plain(on_redis)
        delayed = DurableTasks(app, leases=False)

        add(app, 1, 2).apply_async(countdown=HOUR)

        assert delayed.count() == 1
        assert client.keys("*delay*scheduled*")
