"""Release: waiting tasks go to the broker as Celery's own delayed tasks; refused tasks stay unchanged."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from redis_queue import DelayQueue
from redis_queue.celery import DispatchLoop, DurableTasks, push_task
from redis_queue.celery.brokers.amqp import AmqpBroker
from redis_queue.celery.brokers.open import BrokerUnavailableError
from redis_queue.celery.brokers.redis import RedisBroker
from redis_queue.celery.migrate.release import NotReleasableError, Release
from redis_queue.celery.store import Store
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.delay.model import Push
from redis_queue.delay.moves import Moves
from redis_queue.monitor.model import WorkerRow
from redis_queue.monitor.report import Reports
from tests.support.celery.brokers import Broker, ManualClock
from tests.support.servers import RedisServer

LATER = datetime(2030, 1, 1, 12, 30, 15, 250_000, tzinfo=timezone.utc)


@pytest.fixture
def app(broker: Broker, redis_server: RedisServer) -> Celery:
    """An app whose delayed tasks wait in the shared Redis."""
    app = broker.app(redis_queue_url=redis_server.url)
    DurableTasks(app, leases=False)
    return app


@pytest.fixture
def stored(app: Celery) -> DelayQueue:
    return StoredTasks.of(app).queue


def released(app: Celery) -> Release:
    release = Release(app, long_delays=True)
    release.run()
    return release


def waiting(queue: DelayQueue) -> dict[str, tuple[datetime, int]]:
    """Return the due time and the number of deliveries of each entry."""
    return {entry.id: (entry.due_at, entry.deliveries) for entry in queue}


def test_all_tasks_go_with_an_eta_and_due_ones_without(
    app: Celery, broker: Broker, stored: DelayQueue, default: str
) -> None:
    options: dict[str, Any] = {"priority": 7, "headers": {"tenant": "ä"}, "expires": LATER + timedelta(days=1)}
    app.send_task("shop.remind", [1], eta=LATER, task_id="later", **options)
    app.send_task("shop.remind", [2], eta=datetime(2020, 1, 1, tzinfo=timezone.utc), task_id="due")
    push_task(stored, "shop.remind", [3], id="pushed", due_at=LATER, queue=default)

    release = released(app)

    assert (release.released, release.due, release.refused, release.staying()) == (3, 1, {}, 0)
    found = {message.headers["id"]: message for message in broker.take(default)}
    assert {id_: message.headers["eta"] for id_, message in found.items()} == {
        "later": "2030-01-01T12:30:15.250000+00:00",
        "due": None,
        "pushed": "2030-01-01T12:30:15.250000+00:00",
    }
    later = found["later"]
    assert (later.payload[0], later.headers["tenant"], later.properties["priority"]) == ([1], "ä", 7)
    assert later.properties["correlation_id"] == "later"
    assert later.headers["expires"] == (LATER + timedelta(days=1)).isoformat()


def test_protocol_1_has_the_eta_in_the_body(app: Celery, broker: Broker, stored: DelayQueue, default: str) -> None:
    app.conf.task_protocol = 1
    app.send_task("shop.remind", ["ü"], eta=LATER, task_id="the-task")

    assert released(app).released == 1

    (message,) = broker.take(default)
    assert (message.payload["eta"], message.payload["args"]) == (LATER.isoformat(), ["ü"])
    assert "eta" not in message.headers


def test_task_whose_body_cannot_hold_the_eta_stays_until_it_is_due(
    app: Celery, broker: Broker, stored: DelayQueue, default: str
) -> None:
    app.conf.update(task_protocol=1, task_serializer="pickle")
    app.send_task("shop.remind", eta=LATER, task_id="stays")
    app.send_task("shop.remind", eta=datetime(2020, 1, 1, tzinfo=timezone.utc), task_id="goes")
    stored.push(b"not a message", id="foreign", due_at=LATER)

    release = released(app)

    assert (release.released, release.staying(), list(release.refused)) == (1, 2, ["foreign", "stays"])
    assert "protocol 1" in release.refused["stays"]
    assert waiting(stored) == {"stays": (LATER, 0), "foreign": (LATER, 0)}
    (message,) = broker.take(default)
    assert message.properties["correlation_id"] == "goes"


def test_refused_tasks_stay_and_block_no_others(app: Celery, broker: Broker, stored: DelayQueue, default: str) -> None:
    nowhere = broker.name("nowhere")
    first = LATER - timedelta(days=1)
    app.send_task("shop.remind", eta=first, task_id="refused", exchange=nowhere, routing_key="x")
    past = datetime(2020, 1, 1, tzinfo=timezone.utc)
    app.send_task("shop.remind", eta=past, task_id="refused-due", exchange=nowhere, routing_key="x")
    app.send_task("shop.remind", eta=LATER, task_id="goes")

    release = released(app)

    assert (release.released, sorted(release.refused), release.staying()) == (1, ["refused", "refused-due"], 2)
    assert waiting(stored)["refused"] == (first, 0)
    assert stored.stats().due == 1
    assert broker.take_ids(default) == ["goes"]


def failing_after(count: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let both kinds of brokers accept *count* messages and then raise *error*."""
    for kind in (RedisBroker, AmqpBroker):
        monkeypatch.setattr(kind, "at_once", count)
    calls: list[str] = []
    for kind, name in ((Moves, "deliver"), (AmqpBroker, "publish")):
        send: Callable[..., Any] = getattr(kind, name)

        def once(*arguments: Any, send: Callable[..., Any] = send) -> Any:
            if calls:
                raise error
            calls.append("sent")
            return send(*arguments)

        monkeypatch.setattr(kind, name, once)


@pytest.mark.parametrize(
    ("error", "raised"), [(OperationalError("gone"), BrokerUnavailableError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_tasks_not_sent_before_an_abort_stay_unchanged(
    error: BaseException, raised: type[BaseException], app: Celery, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = StoredTasks.of(app).queue
    due = {f"task-{number}": LATER + timedelta(seconds=number) for number in range(5)}
    for id_, eta in due.items():
        app.send_task("shop.remind", eta=eta, task_id=id_)
    release = Release(app, long_delays=True)
    with monkeypatch.context() as patch:
        failing_after(2, error, patch)
        with pytest.raises(raised):
            release.run()

    assert (release.released, release.staying(), stored.stats().in_flight) == (2, 3, 0)
    assert waiting(stored) == {id_: (due[id_], 0) for id_ in ("task-2", "task-3", "task-4")}

    assert released(app).released == 3
    assert sorted(broker.take_ids(app.conf.task_default_queue)) == sorted(due)


def test_unreachable_broker_changes_nothing(app: Celery, stored: DelayQueue, redis_server: RedisServer) -> None:
    app.send_task("shop.remind", eta=LATER, task_id="the-task")
    away = Celery("away", broker="redis://127.0.0.1:1/0", set_as_current=False)
    away.conf.redis_queue_url = redis_server.url

    with pytest.raises(BrokerUnavailableError, match="cannot be reached"):
        Release(away).run()

    assert waiting(stored) == {"the-task": (LATER, 0)}


def test_concurrent_dispatchers_lose_and_duplicate_nothing(
    app: Celery, broker: Broker, stored: DelayQueue, default: str
) -> None:
    count = 3000
    loops = [DispatchLoop(app) for _ in range(2)]
    threads = [threading.Thread(target=loop.run) for loop in loops]
    for thread in threads:
        thread.start()
    due = {f"task-{number:04}": 0.0 if number % 2 else 3600.0 for number in range(count)}
    rows = [app.signature("shop.remind", task_id=id_, countdown=delay or 0.001) for id_, delay in due.items()]
    DurableTasks(app, leases=False).send_many(rows)
    releases = [Release(app, long_delays=True) for _ in range(2)]
    workers = [threading.Thread(target=release.run) for release in releases]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    for loop in loops:
        loop.stop()
    for thread in threads:
        thread.join()

    found = broker.take(default)
    assert Counter(message.headers["id"] for message in found) == Counter(list(due))
    assert {id_ for id_, delay in due.items() if delay} <= {m.headers["id"] for m in found if m.headers["eta"]}
    assert len(stored) == stored.stats().in_flight == 0


class TestEntryClaimedEarly:
    @pytest.fixture
    def moments(self, queue: DelayQueue, clock: ManualClock) -> tuple[DelayQueue, ManualClock]:
        """A queue with a claimed entry that is due in an hour, and its clock."""
        queue.push("later", delay=3600, id="later")
        (entry,) = queue.moves.claim_batch(early=True).entries
        assert entry.lease
        assert entry.lease.expires_at == clock.after(60)
        return queue, clock

    def test_returns_at_its_due_time_not_at_the_end_of_the_lease(self, moments: tuple[DelayQueue, ManualClock]) -> None:
        queue, clock = moments
        clock.advance(3599)
        assert queue.put_back().returned == 0
        clock.advance(1)
        assert queue.put_back().returned == 1
        assert [entry.id for entry in queue.claim()] == ["later"]

    def test_has_its_due_time(self, queue: DelayQueue, clock: ManualClock) -> None:
        queue.push_many([Push(number, id=str(number), delay=number) for number in (600, 0, 60)])

        assert [(entry.id, entry.due_at) for entry in queue.moves.claim_batch(early=True).entries] == [
            ("0", clock.after(0)),
            ("60", clock.after(60)),
            ("600", clock.after(600)),
        ]

    def test_repeated_call_does_not_set_an_earlier_time(
        self, moments: tuple[DelayQueue, ManualClock], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue, clock = moments
        queue.push("another", delay=1800, id="another")
        queue._shards[0].call = _twice(queue._shards[0].call)  # type: ignore[method-assign]

        (entry,) = queue.moves.claim_batch(early=True).entries

        assert entry.lease
        assert (entry.id, entry.due_at, entry.lease.expires_at) == ("another", clock.after(1800), clock.after(60))


def _twice(call: Callable[..., Any]) -> Callable[..., Any]:
    """Lose the first reply of each call, so that it is repeated."""

    def again(name: str, **arguments: Any) -> Any:
        script = call.__self__.script(name)  # type: ignore[attr-defined]
        command = script._command((), {"sequence": call.__self__.next_number(), **arguments})  # type: ignore[attr-defined]
        script._link.send(*command)
        return script._link.send(*command)

    return again


def work(shop: int) -> None:
    """Do nothing."""


def flowing(broker: Broker, store: RedisServer) -> tuple[Celery, list[str]]:
    """Return an app with a paused queue, a limit and a unique task, and the ids of the tasks that wait, in order."""
    app = broker.app(redis_queue_url=store.url)
    queue: str = app.conf.task_default_queue
    app.conf.redis_queue_flow = {f"queue:{queue}": {"limit": 1}, "shop.sync": {"limit": 1, "key": "{shop}"}}
    app.conf.redis_queue_unique = {"shop.once": {"key": "{shop}", "on_conflict": "replace"}}
    delayed = DurableTasks(app)
    for name in ("shop.work", "shop.sync", "shop.once"):
        app.task(work, name=name, shared=False)
    calls = [("shop.work", 1), ("shop.sync", 1), ("shop.sync", 2), ("shop.once", 1), ("shop.work", 2), ("shop.once", 1)]
    ids = [app.tasks[name].delay(shop=shop).id for name, shop in calls]
    delayed.flow.pause(f"queue:{queue}")
    return app, [id_ for number, id_ in enumerate(ids) if number != 3]  # it was replaced


def test_messages_of_flows_go_into_their_queues_and_their_keys_are_gone(
    broker: Broker, redis_server: RedisServer, client: redis.Redis
) -> None:
    app, ids = flowing(broker, redis_server)
    queue = app.conf.task_default_queue
    flow_keys = Store.of(app).flow_keys
    client.hset(flow_keys.running.decode(), f"queue:{queue}", 1)
    assert Release(app).in_flows() == len(ids) + 1
    release = released(app)
    assert (release.from_flows, release.staying(), release.refused) == (len(ids), 0, {})
    assert sorted(broker.take_ids(queue)) == sorted(ids)
    kept = {key.rpartition(b"}:")[2].partition(b":")[0] for key in client.scan_iter(flow_keys.pattern)}
    # What people have set is kept, and how often its keys were used.
    assert kept <= {b"config", b"declared", b"declared_by", b"flags", b"slot", b"signal", b"uncounted", b"taken"}
    # A second run finds nothing to do.
    assert released(app).from_flows == 0


def test_a_message_that_cannot_be_read_stays_and_is_reported(
    rabbitmq_url: str, redis_server: RedisServer, client: redis.Redis
) -> None:
    with Broker(rabbitmq_url) as broker:
        app, ids = flowing(broker, redis_server)
        flow_keys = Store.of(app).flow_keys
        records = f"{flow_keys.taken}unacked"
        # A killed worker had taken one.
        group = client.zrange(flow_keys.oldest.decode(), 0, 0)[0]
        element = client.rpop(flow_keys.messages("").decode() + group.decode())
        client.hincrby(flow_keys.backlog.decode(), f"queue:{app.conf.task_default_queue}", -1)
        client.hset(records, "flow-1", b"[" + element + b', "", "' + app.conf.task_default_queue.encode() + b'"]')
        client.hset(records, "flow-2", b"[[[")
        client.hset(flow_keys.running.decode(), "shop.sync", 1)
        release = released(app)
        assert list(release.refused) == ["?"]
        assert (release.from_flows, release.staying()) == (len(ids), 1)
        assert client.exists(flow_keys.running.decode())
        assert sorted(broker.take_ids(app.conf.task_default_queue)) == sorted(ids)


def test_what_another_release_publishes_at_the_same_time_hides_no_message_of_a_flow(
    rabbitmq_url: str, redis_server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish: Callable[..., bool] = Release._publish
    removed: list[object] = []

    def as_another_does(release: Release, broker: Any, record: bytes) -> bool:
        done = publish(release, broker, record)
        if not removed:
            # It has published the same record, and is faster.
            removed.append(client.rpop(release._keys.released))
        return done

    monkeypatch.setattr(Release, "_publish", as_another_does)
    with Broker(rabbitmq_url) as broker:
        app, ids = flowing(broker, redis_server)
        assert released(app).staying() == 0
        assert len(removed) == 1
        assert sorted(broker.take_ids(app.conf.task_default_queue)) == sorted(ids)


def test_it_refuses_while_a_worker_with_leases_reports(
    broker: Broker, redis_server: RedisServer, client: redis.Redis
) -> None:
    app, ids = flowing(broker, redis_server)
    now = datetime.now(timezone.utc)
    Reports(client, Store.of(app).prefix).write(WorkerRow("one@host", now, now, keeper=True))
    with pytest.raises(NotReleasableError, match=r"1 workers with leases run.*one@host"):
        released(app)
    assert Release(app).in_flows() == len(ids) + 1


def test_it_refuses_delays_beyond_the_visibility_timeout_of_a_redis_broker(
    app: Celery, broker: Broker, stored: DelayQueue, default: str
) -> None:
    app.conf.broker_transport_options = {**broker.options, "visibility_timeout": 100}
    for delay in (50, 150):
        app.send_task("shop.remind", countdown=delay)
    assert (Release(app).refusal() is None) == broker.url.startswith("amqp")
    if not broker.url.startswith("amqp"):
        with pytest.raises(NotReleasableError, match="1 tasks are due later than visibility_timeout=100 s"):
            Release(app).run()
        assert len(stored) == 2
    Release(app, long_delays=True).run()
    assert len(broker.take(default)) == 2
