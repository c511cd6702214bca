"""Brokers: a message that cannot be sent becomes a dead letter and never blocks others; overdue entries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.entity import Exchange, Queue, binding

from redis_queue import DelayQueue
from redis_queue.basics.times import monotonic
from redis_queue.celery import Dispatched, Dispatcher, DurableTasks, push_task
from redis_queue.celery.brokers.amqp import AmqpBroker
from redis_queue.celery.brokers.open import open_broker
from redis_queue.celery.brokers.redis import RedisBroker
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.migrate.release import Release
from redis_queue.delay.model import Push
from redis_queue.store.codec import JSON, Codec
from redis_queue.store.keys import Keys
from tests.support.acl import limited_clients
from tests.support.celery.brokers import Broker, ManualClock, dispatch, send_due
from tests.support.servers import RedisServer
from tests.support.wait import must, wait_until

pytestmark = [pytest.mark.parametrize("broker", ["redis", "another redis", "rabbitmq"], indirect=True)]

make_queue: Any = Queue  # kombu annotates neither
make_exchange: Any = Exchange
make_binding: Any = binding


def of_another_app(broker: Broker, redis_url: str, **settings: Any) -> DurableTasks:
    """Return the DurableTasks of another app, whose queues the dispatching app does not know."""
    return DurableTasks(broker.app(redis_queue_url=redis_url, **settings), leases=False)


def test_broker_class_fits_the_kind_of_broker(app: Celery, broker: Broker, client: redis.Redis) -> None:
    opened = open_broker(app, client)
    try:
        if broker.url.startswith("amqp"):
            assert isinstance(opened, AmqpBroker)
            assert not opened.shares_store
        else:
            assert isinstance(opened, RedisBroker)
            assert opened.shares_store == ("virtual_host" not in broker.url)
    finally:
        opened.close()
    assert not list(client.scan_iter("*probe*"))


def test_dispatcher_does_not_change_the_queues_of_its_app(
    app: Celery, broker: Broker, delayed: DurableTasks, redis_url: str
) -> None:
    other = broker.app(redis_queue_url=redis_url)
    before = dict(other.amqp.queues)
    elsewhere = broker.name("elsewhere")
    sent = send_due(delayed, queue=elsewhere)
    dispatcher = Dispatcher(other, DurableTasks(other, leases=False).queue)
    assert dispatcher.run() == Dispatched(sent=1)
    dispatcher.close()
    assert dict(other.amqp.queues) == before
    assert broker.take_ids(elsewhere) == [sent]


def test_same_store_is_recognised_by_keys_under_its_prefix(
    broker: Broker, redis_url: str, redis_server: RedisServer, client: redis.Redis
) -> None:
    app = broker.app(redis_queue_url=redis_url, redis_queue_prefix="shop")
    rules = "~{shop:* ~shop:* &{shop:* +eval +evalsha +get +set +del +pexpire"
    with limited_clients(client, redis_server.url) as make:
        opened = open_broker(app, make(rules))
        assert opened.shares_store == (broker.url.startswith("redis") and "virtual_host" not in broker.url)
        opened.close()


def test_unroutable_message_becomes_a_dead_letter_and_blocks_no_others(
    app: Celery, broker: Broker, delayed: DurableTasks, work: Dispatcher
) -> None:
    exchange = broker.name("topic")
    broker.bind(broker.name("other"), exchange, "orders.paid")
    lost = send_due(delayed, exchange=exchange, routing_key="orders.nobody", declare=[])
    good = send_due(delayed)
    for _ in range(delayed.queue.settings.max_deliveries):
        done = work.run()
        assert done.failed == 1
        if delayed.get(lost):
            assert delayed.run_now(lost)
    (letter,) = delayed.queue.dead_letters()
    assert letter.id == lost
    assert "orders.nobody" in letter.reason
    assert broker.take_ids(app.conf.task_default_queue) == [good]


def test_missing_exchange_makes_a_dead_letter(
    app: Celery, broker: Broker, delayed: DurableTasks, work: Dispatcher
) -> None:
    send_due(delayed, exchange=broker.name("missing"), routing_key="x", declare=[])
    good = [send_due(delayed) for _ in range(3)]
    assert work.run() == Dispatched(sent=3, failed=1)
    assert sorted(broker.take_ids(app.conf.task_default_queue)) == sorted(good)


@pytest.mark.parametrize("configured", [True, False], ids=["in the configuration", "by name"])
def test_existing_queue_with_other_arguments_is_used_unchanged(
    *, broker: Broker, redis_url: str, caplog: pytest.LogCaptureFixture, configured: bool
) -> None:
    name = broker.name("other")
    queues = {"task_queues": [make_queue(name, routing_key=name)]} if configured else {}
    app = broker.app(redis_queue_url=redis_url, **queues)
    with app.connection_for_write() as connection:
        make_queue(name, make_exchange(name), routing_key=name, max_priority=5)(connection.default_channel).declare()
    delayed = of_another_app(broker, redis_url)
    sent = [send_due(delayed, queue=name) for _ in range(2)]

    assert dispatch(app) == Dispatched(sent=2)

    assert sorted(broker.take_ids(name)) == sorted(sent)
    told = [record for record in caplog.records if "used as it is" in record.message]
    assert len(told) == int(configured and broker.url.startswith("amqp"))


class TestAppsThatShareADelayQueue:
    """The dispatching app does not know the queues of the sending app."""

    @pytest.fixture
    def other(self, broker: Broker, redis_url: str) -> Iterator[Dispatcher]:
        app = broker.app(redis_queue_url=redis_url)
        dispatcher = Dispatcher(app, DurableTasks(app, leases=False).queue)
        yield dispatcher
        dispatcher.close()

    def test_leave_queues_with_attributes_as_they_were_declared(
        self, broker: Broker, redis_url: str, other: Dispatcher
    ) -> None:
        name = broker.name("urgent")
        queue = make_queue(name, make_exchange(name), routing_key=name, max_priority=5, max_length_bytes=10_000)
        app = broker.app(redis_queue_url=redis_url, task_queues=[queue])
        delayed = DurableTasks(app, leases=False)
        # Its workers have never run, so the queue does not exist.
        sent = send_due(delayed, queue=name)

        assert other.run() == Dispatched(sent=1)

        with app.connection_for_write() as connection:
            # RabbitMQ refuses a declaration that differs from the existing queue.
            queue(connection.default_channel).declare()
        assert broker.take_ids(name) == [sent]

    @pytest.mark.parametrize("kind", ["topic", "direct"])
    def test_reach_the_exchanges_of_each_other(
        self, broker: Broker, redis_url: str, other: Dispatcher, kind: str
    ) -> None:
        name, events = broker.name("mail"), broker.name("events")
        key = "order.*" if kind == "topic" else "order.late"
        queue = make_queue(name, make_exchange(events, kind), routing_key=key)
        app = broker.app(redis_queue_url=redis_url, task_queues=[queue])
        with app.connection_for_write() as connection:
            queue(connection.default_channel).declare()
        delayed = DurableTasks(app, leases=False)
        # The same state as in the process of another app, which has declared no exchange.
        broker.forget_exchanges()
        sent = send_due(delayed, queue=name, exchange=events, routing_key="order.late")

        assert other.run() == Dispatched(sent=1)

        assert broker.take_ids(name) == [sent]


def test_an_exchange_of_the_configuration_has_its_type(broker: Broker, redis_url: str) -> None:
    keys = {broker.name("exact"): "order.late", broker.name("pattern"): "order.*"}
    events = make_exchange(broker.name("events"), "topic")
    app = broker.app(
        redis_queue_url=redis_url, task_queues=[make_queue(name, events, routing_key=keys[name]) for name in keys]
    )
    with app.connection_for_write() as connection:
        for queue in app.amqp.queues.values():
            queue(connection.default_channel).declare()
    # The same state as in a process that has declared no exchange: kombu takes it for a direct one.
    broker.forget_exchanges()
    sent = send_due(DurableTasks(app, leases=False), exchange=events.name, routing_key="order.late", declare=[])

    assert dispatch(app) == Dispatched(sent=1)

    assert [broker.take_ids(name) for name in keys] == [[sent], [sent]]


@pytest.mark.parametrize("allowed", [True, False])
def test_queue_object_is_bound_only_if_the_setting_allows_it(*, broker: Broker, redis_url: str, allowed: bool) -> None:
    exchange, second, name = broker.name("exchange"), broker.name("second"), broker.name("bound")
    queue = make_queue(
        name,
        bindings=[
            make_binding(make_exchange(exchange, "topic"), "order.*", {"x": "y"}),
            make_binding(make_exchange(second, "direct"), "paid"),
        ],
        max_length_bytes=10_000,
    )
    setting = {"redis_queue_allowed_queues": ["test-*", "celery"]} if allowed else {}
    app = broker.app(redis_queue_url=redis_url, **setting)
    delayed = of_another_app(broker, redis_url)
    # So that an exchange of another app exists, with messages for the queue.
    broker.bind(broker.name("others"), second, "paid")
    id_ = send_due(delayed, exchange=exchange, routing_key="order.late", declare=[queue])
    plain = send_due(delayed, exchange=second, routing_key="paid", declare=[queue])

    done = dispatch(app)

    assert done == (Dispatched(sent=2) if allowed else Dispatched(sent=1, failed=1))
    assert sorted(broker.take_ids(name)) == (sorted([id_, plain]) if allowed else [])


def test_queue_object_with_no_declare_is_not_declared(
    broker: Broker, app: Celery, delayed: DurableTasks, work: Dispatcher
) -> None:
    name = broker.name("foreign")
    send_due(delayed, queue=make_queue(name, no_declare=True))
    amqp = broker.url.startswith("amqp")

    assert work.run() == (Dispatched(failed=1) if amqp else Dispatched(sent=1))

    assert len(delayed.queue.list()) == int(amqp)


FORBIDDEN = {
    "a list of redis_queue": {"queue": "{redis_queue:queue:orders}:ready"},
    "a list of another prefix": {"queue": "{shop:delay:scheduled:0}:quarantine"},
    "the audit": {"queue": "redis_queue:audit"},
    "what is in flight": {"queue": "unacked_index"},
    "a binding": {"queue": "_kombu.binding.celery"},
    "a result": {"queue": "celery-task-meta-order-42"},
    "a mailbox": {"queue": "worker@host.celery.pidbox"},
    "remote control": {"exchange": "celery.pidbox", "routing_key": "x", "declare": []},
    "events": {"exchange": "celeryev", "routing_key": "task.sent", "declare": []},
    "an exchange of RabbitMQ": {"exchange": "amq.topic", "routing_key": "x", "declare": []},
}


class TestAForbiddenDestination:
    def test_makes_a_dead_letter_with_a_reason_and_blocks_no_others(
        self,
        *,
        broker: Broker,
        redis_url: str,
        delayed: DurableTasks,
        work: Dispatcher,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        other = of_another_app(broker, redis_url)
        bad = {send_due(other, **options): what for what, options in FORBIDDEN.items()}
        good = send_due(other)

        assert work.run() == Dispatched(sent=1, failed=len(bad))

        letters = delayed.queue.dead_letters()
        assert {bad.get(letter.id) for letter in letters} == set(FORBIDDEN)
        assert [letter.deliveries for letter in letters] == [1] * len(bad)
        assert all("is reserved" in letter.reason for letter in letters)
        told = [record for record in caplog.records if record.levelname == "ERROR"]
        assert sum(record.count for record in told) == len(bad)  # type: ignore[attr-defined]
        assert broker.take_ids(other.app.conf.task_default_queue) == [good]

    def test_only_in_the_record_makes_a_dead_letter_too(
        self, *, broker: Broker, redis_url: str, client: redis.Redis
    ) -> None:
        app = broker.app(redis_queue_url=redis_url, redis_queue_allowed_queues=[])
        delayed = DurableTasks(app, leases=False)
        push = late(app)
        keys = {"{redis_queue:queue:orders}:ready", "celery-task-meta-x", "elsewhere"}
        delayed.queue.push_many([replace(push, destination=key, id=key) for key in keys])
        delayed.queue.push_many([replace(push, id="good")])

        done = dispatch(app)

        # RabbitMQ has no lists: the list in a record is ignored.
        amqp = broker.url.startswith("amqp")
        assert done == (Dispatched(sent=4) if amqp else Dispatched(sent=1, failed=3))
        assert {letter.id for letter in delayed.queue.dead_letters()} == (set() if amqp else keys)
        assert len(broker.take(app.conf.task_default_queue)) == done.sent
        assert not client.exists(*keys)

    def test_of_a_stored_call_is_refused_at_every_attempt(
        self, app: Celery, delayed: DurableTasks, work: Dispatcher, client: redis.Redis
    ) -> None:
        for _ in range(2):
            push_task(delayed.queue, "shop.remind", id="bad", queue="redis_queue:audit")
            assert work.run() == Dispatched(failed=1)

        assert [letter.id for letter in delayed.queue.dead_letters()] == ["bad"]
        assert not client.exists("redis_queue:audit")

    def test_is_any_queue_outside_the_allowed_queues(self, broker: Broker, redis_url: str) -> None:
        named, other = broker.name("named"), broker.name("other")
        app = broker.app(redis_queue_url=redis_url, redis_queue_allowed_queues=["test-named-*"])
        delayed = of_another_app(broker, redis_url, task_default_queue=app.conf.task_default_queue)
        good, bad = send_due(delayed, queue=named), send_due(delayed, queue=other)
        again = send_due(delayed, exchange=broker.name("exchange"), routing_key="x", declare=[])
        own = send_due(delayed)

        assert dispatch(app) == Dispatched(sent=2, failed=2)

        assert broker.take_ids(named) == [good]
        assert broker.take_ids(app.conf.task_default_queue) == [own]
        letters = delayed.queue.dead_letters()
        assert {letter.id for letter in letters} == {bad, again}
        assert all("redis_queue_allowed_queues" in letter.reason for letter in letters)

    @pytest.mark.parametrize("as_call", [True, False], ids=["a call", "a message"])
    def test_is_reported_at_release_and_stays_stored(
        self, *, app: Celery, broker: Broker, delayed: DurableTasks, redis_url: str, as_call: bool
    ) -> None:
        if as_call:
            id_ = push_task(delayed.queue, "shop.remind", delay=60, queue="redis_queue:audit")
        else:
            other = of_another_app(broker, redis_url).app
            id_ = other.send_task("shop.remind", countdown=60, queue="redis_queue:audit").id

        release = Release(app)
        release.run()

        assert (release.released, list(release.refused)) == (0, [id_])
        assert "is reserved" in release.refused[id_]


def test_queue_of_the_configuration_may_have_any_name(broker: Broker, redis_url: str) -> None:
    name = f"{broker.name('unusual')}.pidbox"
    broker.forget_later(name)
    app = broker.app(redis_queue_url=redis_url, task_queues=[make_queue(name, routing_key=name)])
    delayed = DurableTasks(app, leases=False)
    sent = send_due(delayed, queue=name)

    assert dispatch(app) == Dispatched(sent=1)

    assert broker.take_ids(name) == [sent]


def test_refusing_queue_is_retried_with_backoff_and_blocks_no_others(
    *,
    broker: Broker,
    app: Celery,
    delayed: DurableTasks,
    work: Dispatcher,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = broker.name("full")
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    full = make_queue(name, make_exchange(name), routing_key=name, queue_arguments=arguments)
    app.conf.task_queues = [full, make_queue(app.conf.task_default_queue)]
    if not broker.url.startswith("amqp"):
        # Redis refuses a push if the key of the list holds another type.
        number = 1 if "virtual_host" in broker.url else 0
        with redis.Redis(unix_socket_path=client.connection_pool.connection_kwargs["path"], db=number) as other:
            other.set(name, "not a list")
    bad = [send_due(delayed, queue=name) for _ in range(3)]
    good = send_due(delayed)
    taken = int(broker.url.startswith("amqp"))
    done = work.run()
    assert done.sent == 1 + taken
    left = [entry.id for entry in delayed.list()]
    assert len(left) == done.failed == 3 - taken
    assert not delayed.queue.dead_letters()
    assert set(left) <= set(bad)
    assert [record.count for record in caplog.records if record.levelname == "ERROR"] == [3 - taken]  # type: ignore[attr-defined]
    pauses = [entry.due_at - datetime.now(timezone.utc) for entry in delayed.list()]
    assert all(pause <= timedelta(seconds=1) for pause in pauses)
    assert [entry.deliveries for entry in delayed.list()] == [1] * (3 - taken)
    for _ in left:
        for id_ in left:
            delayed.run_now(id_)
        work.run()
    assert min(entry.due_at - datetime.now(timezone.utc) for entry in delayed.list()) > timedelta(seconds=1)
    assert broker.take_ids(app.conf.task_default_queue) == [good]


def test_many_messages_arrive_in_order_and_once(
    app: Celery, broker: Broker, delayed: DurableTasks, work: Dispatcher
) -> None:
    signatures = [app.signature("shop.remind", (number,)) for number in range(1200)]
    ids = [result.id for result in delayed.send_many(signatures, countdown=0.001)]
    wait_until(lambda: delayed.queue.stats().due == 1200, description="all entries to be due")
    assert work.run() == Dispatched(sent=1200)
    assert sorted(broker.take_ids(app.conf.task_default_queue)) == sorted(ids)
    assert delayed.queue.stats().in_flight == 0


def test_an_entry_of_a_later_version_is_left_alone(
    app: Celery, delayed: DurableTasks, work: Dispatcher, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    delayed.queue.push(b"\x02later", id="later", destination=app.conf.task_default_queue)
    good = send_due(delayed)
    assert work.run() == Dispatched(sent=1)
    entry = must(delayed.queue.get("later"))
    assert (entry.payload, entry.deliveries) == (b"\x02later", 0)
    assert [record.message for record in caplog.records if "newer version" in record.message]
    assert broker.take_ids(app.conf.task_default_queue) == [good]
    assert delayed.queue.stats().quarantined == 0


def damaged(packed: bytes) -> dict[str, tuple[bytes, bytes, dict[str, Any] | None]]:
    """Return ids, payloads and headers of records after manual edits; *packed* is a valid message."""
    return {
        "an unknown phrase": (b"bad-entry", packed.replace(b"\x81", b"\xfe"), None),
        "half a message": (b"bad-entry", packed[: len(packed) // 2], None),
        "no message": (b"bad-entry", b"\x01{}", None),
        "nested too deeply": (b"bad-entry", b"\x01" + b"[" * 100_000, None),
        "an id that is no text": (b"bad-\xff\xfe-id", packed, None),
        "an id with a quote": (b'bad"-entry', packed, None),
        "an id with a line feed": (b"bad\n-entry", packed, None),
        "a queue that is a number": (b"bad-entry", packed, {"declare": 5}),
        "an expiry that is text": (b"bad-entry", packed, {"expires_at": "soon"}),
    }


@pytest.mark.parametrize("what", damaged(b""))
def test_edited_entry_becomes_a_dead_letter_with_its_bytes_and_blocks_no_others(
    *, app: Celery, delayed: DurableTasks, work: Dispatcher, broker: Broker, client: redis.Redis, what: str
) -> None:
    default, keys = app.conf.task_default_queue, Keys("redis_queue", "delay", "scheduled", 0)
    good = [send_due(delayed), send_due(delayed)]
    entry = must(delayed.queue.get(good[0]))
    id_, payload, headers = damaged(entry.payload)[what]
    # A complete message with a list in its record is moved unchanged, whether or not it is read.
    looked_at = what.startswith("an id") or (what == "an unknown phrase" and "virtual_host" in broker.url)
    destination = default if looked_at else None
    record = b"v1 1700000000000 " + Codec(JSON, 2**20).encode(payload, headers, destination)
    client.hset(keys.records, id_, record)  # type: ignore[arg-type]
    client.zadd(keys.waiting, {id_: 1})

    assert work.run() == Dispatched(sent=2, failed=1)

    assert sorted(broker.take_ids(default)) == sorted(good)
    (dead,) = delayed.queue.dead_letters()
    assert (dead.id.encode(errors="surrogateescape"), dead.body) == (id_, payload)
    assert dead.reason
    assert delayed.count() == 0


class TestOverdue:
    def test_run_sends_all_entries(self, broker: Broker, redis_url: str) -> None:
        app = broker.app(redis_queue_url=redis_url)
        delayed = DurableTasks(app, leases=False)
        delayed.queue.push_many([late(app) for _ in range(30)])
        assert dispatch(app) == Dispatched(sent=30)

    def test_skip_makes_dead_letters_of_overdue_entries(self, broker: Broker, redis_url: str) -> None:
        app = broker.app(redis_queue_url=redis_url, redis_queue_overdue="skip:3600")
        delayed = DurableTasks(app, leases=False)
        old = ManualClock()
        old.advance(-7200)
        DelayQueue("scheduled", redis_url, clock=old).push_many([late(app) for _ in range(3)])
        good = send_due(delayed)
        assert dispatch(app) == Dispatched(sent=1)
        assert broker.take_ids(app.conf.task_default_queue) == [good]
        letters = delayed.queue.dead_letters()
        assert [letter.reason for letter in letters] == ["overdue by more than 3600 s"] * 3
        assert delayed.queue.redrive() == 3

    def test_spread_limits_overdue_entries_per_second_and_sends_new_ones_at_once(
        self, broker: Broker, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = broker.app(redis_queue_url=redis_url, redis_queue_overdue="spread:10")
        delayed = DurableTasks(app, leases=False)
        old = ManualClock()
        old.advance(-60)
        DelayQueue("scheduled", redis_url, clock=old).push_many([late(app) for _ in range(50)])
        fresh = send_due(delayed)
        # Only the allowance lives by this clock; the time for a delivery is compared with the real one.
        now = [monotonic()]
        monkeypatch.setattr("redis_queue.celery.dispatch.dispatcher.monotonic", lambda: now[0])
        work = Dispatcher(app, delayed.queue)
        sent = [work.run_once().sent]
        for _ in range(3):
            now[0] += 1
            sent.append(work.run_once().sent)
        assert sent == [11, 10, 10, 10]
        assert fresh in broker.take_ids(app.conf.task_default_queue)
        assert delayed.count() == 10


def late(app: Celery) -> Push:
    envelope = Envelope(
        body=b"[[], {}, {}]",
        content_type="application/json",
        content_encoding="utf-8",
        headers={"lang": "py", "task": "shop.late", "id": "any"},
        properties={"correlation_id": "any", "delivery_mode": 2},
        exchange="",
        routing_key=app.conf.task_default_queue,
    )
    return Push(envelope.pack(), destination=app.conf.task_default_queue)
