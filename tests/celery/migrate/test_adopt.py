"""Adoption: delayed tasks of stock workers move from the broker into the store, without loss or duplicates."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue import ConfigurationError, DelayQueue
from redis_queue.celery import DurableTasks
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import CALL, SENT
from redis_queue.celery.migrate import adopt
from redis_queue.celery.migrate.adopt import Adoption, HeldByWorkersError, LiveWorkers, SilentWorkersError
from redis_queue.celery.migrate.kombu_backlog import RemainingTask
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.delay.entries import MarkedEntries
from redis_queue.delay.model import ForeignMessage, Push
from redis_queue.delay.moves import Foreign
from redis_queue.model import Entry
from tests.support.celery.brokers import Broker, declared, exchange_of
from tests.support.celery.commands import run_command
from tests.support.celery.processes import CeleryProcess
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

LATER = datetime(2030, 1, 1, tzinfo=timezone.utc)

MakeApp = Callable[..., Celery]


@pytest.fixture
def make(redis_server: RedisServer, client: redis.Redis) -> Iterator[MakeApp]:
    """Makes apps on the shared Redis; *stock* apps have no DurableTasks."""
    made: list[Celery] = []

    def app(*, stock: bool = False, **settings: Any) -> Celery:
        app = Celery("tests", broker=f"redis+socket://{redis_server.socket}", set_as_current=False)
        app.conf.update(settings)
        made.append(app)
        if not stock:
            DurableTasks(app, leases=False)
        return app

    yield app
    for one in made:
        one.close()


@pytest.fixture(params=["the broker's Redis", "another Redis"])
def store(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[dict[str, Any]]:
    """The setting with the URL of the store."""
    if request.param == "the broker's Redis":
        yield {"redis_queue_url": redis_server.url}
    else:
        with RedisServer() as other:
            yield {"redis_queue_url": other.url}


def stored(app: Celery) -> DelayQueue:
    return StoredTasks.of(app).queue


def fetch(client: redis.Redis, key: str = "celery", *, prefix: str = "", unacked: str = "unacked") -> None:
    """Fetch the next message like a worker that then dies; the worker before it has died as well."""
    message = json.loads(client.rpop(f"{prefix}{key}"))  # type: ignore[arg-type]
    route = message["properties"]["delivery_info"]
    message["headers"]["redelivered"] = route["redelivered"] = True
    tag = message["properties"]["delivery_tag"]
    client.hset(f"{prefix}{unacked}", tag, json.dumps([message, route["exchange"], route["routing_key"]]))
    client.zadd(f"{prefix}{unacked}_index", {tag: time.time()})


def settled(entry: Entry) -> tuple[Any, ...]:
    """Return the fields that two entries of the same call have in common."""
    envelope = Envelope.unpack(entry.payload, entry.id, entry.headers)
    headers = {name: value for name, value in envelope.headers.items() if name not in (CALL, SENT)}
    payload = re.sub(rb"T\d\d:\d\d:\d\d\.\d+", b"", replace(envelope, headers=headers).pack())
    return payload, entry.destination, entry.due_at, sorted(entry.headers)


def adopted(app: Celery) -> tuple[int, int]:
    """Adopt; return the numbers of adopted and of only removed messages."""
    adoption = Adoption(app)
    adoption.run()
    assert adoption.left == []
    return adoption.adopted, adoption.removed


def test_tasks_of_stock_workers_wait_and_run_once(client: redis.Redis, redis_server: RedisServer) -> None:
    environment = {"BROKER": f"redis+socket://{redis_server.socket}", "STORE": redis_server.url}
    worker: tuple[str, ...] = (
        "-A",
        "tests.support.celery.migrating",
        "worker",
        "--pool",
        "threads",
        "--concurrency",
        "2",
        "-l",
        "INFO",
    )
    worker = (*worker, "--without-mingle", "--without-gossip")
    due: dict[str, datetime] = {}
    sender = Celery("tests", broker=environment["BROKER"], set_as_current=False)

    def send(count: int) -> None:
        for number in range(len(due), len(due) + count):
            due[f"task-{number}"] = eta = LATER + timedelta(seconds=number)
            sender.send_task("migrating.note", eta=eta, task_id=f"task-{number}")
        wait_until(lambda: client.hlen("unacked") == len(due), description="a worker that holds all messages")

    with CeleryProcess(*worker, environment=environment) as killed:
        killed.wait_for_output("ready.")
        send(3)
    with CeleryProcess(*worker, environment=environment) as stopped:
        stopped.wait_for_output("ready.")
        send(3)
        app = Celery("tests", broker=environment["BROKER"], set_as_current=False)
        app.conf.redis_queue_url = redis_server.url
        with pytest.raises(
            HeldByWorkersError, match=r"hold 3 of these tasks in memory, such as task-3: stop them first"
        ):
            Adoption(app).run()
        assert stopped.finish() == 0
    assert (client.hlen("unacked"), client.llen("celery")) == (3, 3)

    done = run_command("adopt", "--json", **environment)

    assert (done.returncode, json.loads(done.stdout)) == (0, {"adopted": 6, "removed": 0, "left": []}), done.stderr
    assert (client.exists("unacked"), client.exists("unacked_index"), client.exists("celery")) == (0, 0, 0)
    delayed = DurableTasks(app, leases=False)
    assert {entry.id: entry.due_at for entry in delayed.list()} == due
    assert all(delayed.run_now(id_) for id_ in due)
    with CeleryProcess(*worker, environment={**environment, "MIGRATED": "1"}):
        wait_until(lambda: client.llen("noted") >= 6, description="six executed tasks")
        ran = [str(row, "utf-8").split() for row in client.lrange("noted", 0, -1)]  # type: ignore[arg-type]
    assert Counter(id_ for id_, _ in ran) == Counter(list(due))
    sender.close()
    app.close()


@pytest.mark.parametrize("protocol", [1, 2])
def test_adopted_entries_equal_captured_entries(
    protocol: int, make: MakeApp, store: dict[str, Any], client: redis.Redis
) -> None:
    # kombu caches its bindings for the lifetime of the process, even if the Redis is emptied.
    mail = f"mail-{uuid.uuid4()}"
    settings = {
        **store,
        "task_protocol": protocol,
        "task_queues": [declared("celery"), declared(mail, exchange_of(mail, "direct"), routing_key="mail")],
    }
    options: dict[str, Any] = {"priority": 5, "expires": 900, "headers": {"tenant": "ä"}}

    def send(app: Celery) -> None:
        for number, more in enumerate(({}, options, {"queue": mail}, {"exchange": mail, "routing_key": "mail"})):
            app.send_task(
                "shop.remind", ["ü", number], {"a": 1}, eta=LATER, task_id=f"a-task-{number}", reply_to="me", **more
            )

    app = make(**settings)
    send(app)
    captured = {entry.id: settled(entry) for entry in stored(app)}
    stored(app).destroy()
    send(make(stock=True, **settings))
    fetch(client, mail)
    fetch(client, "celery")

    assert adopted(app) == (4, 0)

    assert {entry.id: settled(entry) for entry in stored(app)} == captured
    assert len(captured) == 4


def test_all_queues_and_priorities_are_searched(make: MakeApp, store: dict[str, Any], client: redis.Redis) -> None:
    settings = {
        **store,
        "broker_transport_options": {
            "global_keyprefix": "mine-",
            "unacked_key": "taken",
            "unacked_index_key": "taken_index",
            "sep": "/",
            "priority_steps": [0, 5],
        },
        "task_queues": [declared("one"), declared("two")],
    }
    stock = make(stock=True, **settings)
    for number, queue in enumerate(("one", "two") * 4):
        stock.send_task("shop.remind", [number], queue=queue, priority=number, countdown=3600)
        stock.send_task("shop.remind", [number], queue=queue, priority=number)
    fetch(client, "two", prefix="mine-", unacked="taken")

    assert adopted(make(**settings)) == (8, 0)

    keys: list[Any] = client.keys("mine-*")
    left = {key.decode() for key in keys if b"binding" not in key}
    assert left == {"mine-one", "mine-one/5", "mine-two", "mine-two/5"}
    kept = [json.loads(row) for key in left for row in client.lrange(key, 0, -1)]
    assert all(message["headers"]["eta"] is None for message in kept)


@pytest.mark.parametrize("shards", [1, 3])
def test_long_list_loses_only_its_delayed_messages_and_keeps_its_order(
    shards: int, make: MakeApp, store: dict[str, Any], client: redis.Redis
) -> None:
    settings = {**store, "redis_queue_shards": shards}
    stock = make(stock=True, **settings)
    for number in range(1200):
        delay = {} if number % 3 == 0 else {"countdown": 3600}
        stock.send_task("shop.remind", [number], task_id=f"task-{number:04}", **delay)
    app = make(**settings)

    assert adopted(app) == (800, 0)

    plain = [json.loads(row)["headers"]["id"] for row in client.lrange("celery", 0, -1)]
    assert plain == [f"task-{number:04}" for number in range(1199, -1, -1) if number % 3 == 0]
    assert {entry.id for entry in stored(app)} == {f"task-{number:04}" for number in range(1200) if number % 3}


def test_list_that_changes_during_the_search_loses_nothing(
    make: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, store: dict[str, Any]
) -> None:
    stock = make(stock=True)
    for number in range(10):
        delay = {"countdown": 3600} if number % 2 else {}
        stock.send_task("shop.remind", task_id=f"task-{number}", **delay)
    app = make(**store)
    part, name = (Foreign, "adopt") if shares(app, client) else (MarkedEntries, "keep_many")
    take = getattr(part, name)
    consumed: list[Any] = []

    def while_consumed(self: Foreign | MarkedEntries, items: Any) -> Any:
        consumed.extend(client.rpop("celery", 1) or () if not consumed else ())
        return take(self, items)

    monkeypatch.setattr(part, name, while_consumed)

    assert adopted(app) == (5, 0)

    assert json.loads(consumed[0])["headers"]["id"] == "task-0"
    assert [json.loads(row)["headers"]["id"] for row in client.lrange("celery", 0, -1)] == [
        f"task-{number}" for number in (8, 6, 4, 2)
    ]
    assert {entry.id for entry in stored(app)} == {f"task-{number}" for number in (1, 3, 5, 7, 9)}


def test_positions_in_one_list_are_correct_for_each_shard(client: redis.Redis) -> None:
    queue = DelayQueue("scheduled", client, shards=3)
    rows = [f"element-{number}".encode() for number in range(600)]
    client.rpush("foreign", *rows)
    found = [
        (Push(row, id=f"id-{number}", due_at=LATER), ForeignMessage(row, "foreign", number - 600))
        for number, row in enumerate(rows)
        if number % 4
    ]

    assert queue.foreign.adopt(found) == [True] * 450
    assert client.lrange("foreign", 0, -1) == rows[::4]
    left = [ForeignMessage(row, "foreign", number - 150) for number, row in enumerate(rows[::4])]
    assert queue.foreign.take_out(left[1:], client) == [True] * 149
    assert queue.foreign.take_out(left[1:], client) == [False] * 149
    assert client.lrange("foreign", 0, -1) == rows[:1]
    assert len(queue) == 450


def shares(app: Celery, client: redis.Redis) -> bool:
    """Return whether the store of *app* is the Redis of *client*."""
    return bool(app.conf.redis_queue_url.endswith(f"{client.connection_pool.connection_kwargs['path']}?db=0"))


def test_find_changes_nothing(make: MakeApp, client: redis.Redis) -> None:
    stock = make(stock=True)
    for number in range(3):
        stock.send_task("shop.remind", eta=LATER, task_id=f"task-{number}")
    fetch(client)
    before = {key: client.dump(key) for key in client.keys("*")}

    found = [(item.id, item.task, item.due_at, item.place) for item in Adoption(make()).find()]

    assert sorted(found) == [
        ("task-0", "shop.remind", LATER, "unacked"),
        ("task-1", "shop.remind", LATER, "celery"),
        ("task-2", "shop.remind", LATER, "celery"),
    ]
    assert {key: client.dump(key) for key in client.keys("*")} == before


def test_crash_between_the_two_steps_duplicates_nothing(
    make: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer() as other:
        settings = {"redis_queue_url": other.url}
        stock = make(stock=True)
        for number in range(4):
            stock.send_task("shop.remind", countdown=3600, task_id=f"task-{number}")
        fetch(client)
        app = make(**settings)
        with monkeypatch.context() as patch:
            patch.setattr(Foreign, "take_out", crash)
            with pytest.raises(KeyboardInterrupt):
                Adoption(app).run()
        assert (len(stored(app)), client.llen("celery"), client.hlen("unacked")) == (3, 3, 1)

        assert adopted(app) == (1, 3)

        assert (len(stored(app)), client.exists("celery", "unacked")) == (4, 0)


def crash(*_: Any) -> None:
    raise KeyboardInterrupt


def test_message_removed_between_the_two_steps_is_not_stored(
    make: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer() as other:
        make(stock=True).send_task("shop.remind", countdown=3600, task_id="the-task")
        app = make(redis_queue_url=other.url)
        take_out = Foreign.take_out

        def late(*args: Any) -> list[bool]:
            fetch(client) if client.llen("celery") else None
            return take_out(*args)

        monkeypatch.setattr(Foreign, "take_out", late)
        adoption = Adoption(app)
        adoption.run()

        assert (adoption.adopted, len(stored(app)), client.hlen("unacked")) == (0, 0, 1)
        assert adoption.left == [RemainingTask("the-task", "unacked", "a worker has just fetched it")]


def test_message_fetched_again_by_a_worker_stays(
    make: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, store: dict[str, Any]
) -> None:
    make(stock=True).send_task("shop.remind", countdown=3600, task_id="the-task")
    fetch(client)
    tag: Any = next(iter(client.hgetall("unacked")))

    def started(_: LiveWorkers) -> int:
        client.zadd("unacked_index", {tag: time.time() + 1})
        return 0

    monkeypatch.setattr(LiveWorkers, "ping", started)
    adoption = Adoption(make(**store))
    adoption.run()

    assert adoption.left == [RemainingTask("the-task", "unacked", "a worker has just fetched it")]
    assert (adoption.adopted, client.hlen("unacked")) == (0, 1)


class TestStoredId:
    @pytest.fixture
    def app(self, make: MakeApp, store: dict[str, Any]) -> Celery:
        return make(**store)

    @pytest.fixture
    def stock(self, make: MakeApp) -> Celery:
        return make(stock=True)

    def test_of_the_same_message_removes_the_message(self, app: Celery, stock: Celery, client: redis.Redis) -> None:
        stock.send_task("shop.remind", eta=LATER, task_id="the-task")
        copy = client.lindex("celery", 0)
        assert adopted(app) == (1, 0)
        assert stored(app).reschedule("the-task", due_at=LATER + timedelta(days=1))
        client.lpush("celery", str(copy, "utf-8"))  # type: ignore[arg-type]

        assert adopted(app) == (0, 1)

        assert [entry.due_at for entry in stored(app)] == [LATER + timedelta(days=1)]
        assert client.llen("celery") == 0

    def test_of_a_later_attempt_removes_the_message(self, app: Celery, stock: Celery, client: redis.Redis) -> None:
        stock.send_task("shop.remind", eta=LATER, task_id="the-task", retries=1)
        fetch(client)
        app.send_task("shop.remind", eta=LATER, task_id="the-task", retries=2)

        assert adopted(app) == (0, 1)

        (entry,) = stored(app)
        assert StoredTasks.of(app).get(entry.id).retries == 2  # type: ignore[union-attr]
        assert client.exists("unacked") == 0

    @pytest.mark.parametrize("last_first", [True, False])
    def test_among_several_attempts_keeps_the_last(
        self, last_first: bool, app: Celery, stock: Celery, client: redis.Redis
    ) -> None:
        for retries in (2, 1) if last_first else (1, 2):
            stock.send_task("shop.remind", eta=LATER, task_id="the-task", retries=retries)

        assert adopted(app) == (1, 1)

        assert [entry.retries for entry in StoredTasks.of(app).list()] == [2]
        assert client.exists("celery") == 0

    def test_of_another_call_keeps_both(self, app: Celery, stock: Celery, client: redis.Redis) -> None:
        stock.send_task("shop.remind", ["stock"], eta=LATER, task_id="the-task")
        app.send_task("shop.remind", ["stored"], eta=LATER, task_id="the-task")

        adoption = Adoption(app)
        adoption.run()

        assert adoption.left == [RemainingTask("the-task", "celery", "another task with its id is stored")]
        assert (client.llen("celery"), [entry.args for entry in StoredTasks.of(app).list()]) == (1, ["['stored']"])

    def test_of_a_dead_letter_keeps_both(self, app: Celery, stock: Celery, client: redis.Redis) -> None:
        stock.send_task("shop.remind", eta=LATER, task_id="the-task")
        app.send_task("shop.remind", eta=LATER, task_id="the-task")
        (entry,) = stored(app).moves.claim_batch(early=True).entries
        stored(app).nack(entry, dead=True)

        adoption = Adoption(app)
        adoption.run()

        assert adoption.left == [RemainingTask("the-task", "celery", "a dead letter has its id")]
        assert (client.llen("celery"), stored(app).stats().dead) == (1, 1)


def test_unreadable_messages_stay_and_block_no_others(make: MakeApp, client: redis.Redis) -> None:
    stock = make(stock=True)
    for number in range(3):
        stock.send_task("shop.remind", eta=LATER, task_id=f"task-{number}")
    broken = json.loads(client.rpop("celery"))  # type: ignore[arg-type]
    broken["headers"]["eta"] = "soon"
    for row in (json.dumps(broken), "no JSON", "[]", "{}"):
        client.rpush("celery", row)
    make(stock=True, task_protocol=1, task_serializer="pickle").send_task("shop.remind", countdown=60)

    adoption = Adoption(make())
    adoption.run()

    assert adoption.adopted == 2
    assert [(left.id, left.place) for left in adoption.left] == [("task-0", "celery")]
    assert "cannot be read" in adoption.left[0].reason
    assert client.llen("celery") == 5


def test_silent_worker_is_not_treated_as_dead(
    make: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adopt, "PING_TIMEOUT", 0.2)
    make(stock=True).send_task("shop.remind", countdown=3600)
    with client.pubsub() as busy:
        busy.psubscribe("/0.celery.pidbox")
        assert busy.get_message(timeout=5)

        with pytest.raises(SilentWorkersError, match="1 of 1 live workers did not answer ping"):
            Adoption(make()).run()

        assert client.llen("celery") == 1
    wait_until(lambda: client.pubsub_numpat() == 0, description="no listener")
    assert adopted(make()) == (1, 0)


def test_stored_tasks_in_a_worker_reply_do_not_count_as_held() -> None:
    rows = [{"request": {"id": "stored", "stored": True}}, {"request": {"id": "waits"}}, {"id": "runs"}]

    assert list(adopt.ids_of(rows)) == ["waits", "runs"]


def test_broker_other_than_redis_is_refused(rabbitmq_url: str, redis_server: RedisServer) -> None:
    with Broker(rabbitmq_url) as broker, pytest.raises(ConfigurationError, match="must be Redis"):
        Adoption(broker.app(redis_queue_url=redis_server.url)).run()
