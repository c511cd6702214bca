"""put_back_all: expired leases of every queue in the registry are put back."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue import DelayQueue, RedisQueue, StoreUnavailableError, WrongTypeError
from redis_queue.celery import Store
from redis_queue.celery.dispatch.beat import put_back_all
from redis_queue.store.keys import Keys
from redis_queue.store.registry import Registry
from redis_queue.store.scripts import Scripts
from tests.support.celery.brokers import ManualClock
from tests.support.servers import RedisServer


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.conf.redis_queue_url = redis_url
    return app


@pytest.fixture
def past(clock: ManualClock) -> ManualClock:
    """A clock one hour behind: the leases of claims with it have expired."""
    clock.advance(-3600)
    return clock


def counts(returned: int = 0, dead: int = 0, promoted: int = 0) -> dict[str, int]:
    return {"returned": returned, "dead": dead, "promoted": promoted}


def claim(queue: RedisQueue | DelayQueue, number: int) -> None:
    if isinstance(queue, RedisQueue):
        queue.put_many(range(number))
        assert len(queue.get_many(number)) == number
    else:
        queue.push_many(range(number))
        assert len(queue.claim(number)) == number


def test_each_registered_queue_is_swept_with_its_own_settings(
    app: Celery, client: redis.Redis, past: ManualClock
) -> None:
    claim(RedisQueue("once", client, clock=past, max_deliveries=1), 3)
    claim(RedisQueue("often", client, clock=past, max_deliveries=5), 4)
    claim(DelayQueue("sharded", client, clock=past, shards=4), 20)
    claim(DelayQueue("strict", client, clock=past, max_deliveries=1), 2)
    RedisQueue("idle", client).put("x")
    RedisQueue("held", client).put("x")
    assert RedisQueue("held", client).get()

    assert put_back_all(app) == {
        "delay:sharded": counts(returned=20),
        "delay:strict": counts(dead=2),
        "queue:held": counts(),
        "queue:idle": counts(),
        "queue:often": counts(returned=4),
        "queue:once": counts(dead=3),
    }
    assert put_back_all(app)["delay:sharded"] == counts()
    assert RedisQueue("often", client).stats().ready == 4
    assert RedisQueue("once", client).stats().dead == 3
    assert RedisQueue("held", client).stats().in_flight == 1
    assert DelayQueue("sharded", client, shards=4).stats().due == 20
    assert DelayQueue("strict", client).stats().dead == 2


def test_registry_is_empty_at_first(app: Celery, client: redis.Redis) -> None:
    assert put_back_all(app) == {}


def test_delayed_messages_that_are_due_are_promoted(app: Celery, client: redis.Redis, past: ManualClock) -> None:
    queue = RedisQueue("later", client, clock=past)
    queue.put_many(range(3), delay=10)
    queue.put("not yet", delay=7200)

    assert put_back_all(app) == {"queue:later": counts(promoted=3)}
    assert (queue.stats().ready, queue.stats().delayed) == (3, 1)


def test_queues_with_special_characters_are_swept(app: Celery, client: redis.Redis, past: ManualClock) -> None:
    claim(RedisQueue("a:b {c} é*", client, clock=past), 1)

    assert put_back_all(app) == {"queue:a:b {c} é*": counts(returned=1)}


def test_queues_of_other_prefixes_are_ignored(app: Celery, client: redis.Redis, past: ManualClock) -> None:
    claim(RedisQueue("work", client, clock=past, prefix="other"), 2)

    assert put_back_all(app) == {}
    assert RedisQueue("work", client, prefix="other").stats().in_flight == 2


def test_broken_queue_does_not_stop_the_others_and_its_error_is_raised_at_the_end(
    app: Celery, client: redis.Redis, past: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "m", "z"):
        claim(RedisQueue(name, client, clock=past), 2)
    claim(DelayQueue("d", client, clock=past), 2)
    broken = Keys("redis_queue", "queue", "m").in_flight
    client.set(broken, "something else")

    with pytest.raises(WrongTypeError, match="in_flight is a string"):
        put_back_all(app)

    assert [RedisQueue(name, client).stats().ready for name in ("a", "z")] == [2, 2]
    assert DelayQueue("d", client).stats().due == 2
    assert "queue:m" in caplog.text


def test_edited_settings_of_a_queue_do_not_stop_the_others(app: Celery, client: redis.Redis, past: ManualClock) -> None:
    for name in ("a", "z"):
        claim(RedisQueue(name, client, clock=past), 1)
    rows: dict[bytes, bytes] = {
        b"queue:m": b"not json",
        b"queue:n": b'{"max_deliveries": "many", "shards": 1}',
        b"queue:o": b"[]",
        b"queue:q": b'{"max_deliveries": Infinity, "shards": 1}',
        b"queue:r": b'{"max_deliveries": 1, "shards": 1e400}',
        b"queue:s": b'{"max_deliveries": NaN, "shards": 1}',
        b"queue:t": b'{"max_deliveries": %b, "shards": 1}' % (b"9" * 5000),
        b"queue:u": b"[" * 100_000,
        b"kind:p": b'{"max_deliveries": 1, "shards": 1}',
        b"queue:": b'{"max_deliveries": 1, "shards": 1}',
        b"\xff\xfe": b"\xff",
    }
    for field, value in rows.items():
        client.execute_command("HSET", "redis_queue:registry", field, value)

    assert put_back_all(app) == {"queue:a": counts(returned=1), "queue:z": counts(returned=1)}


def test_settings_out_of_range_raise_an_error_at_the_end(app: Celery, client: redis.Redis, past: ManualClock) -> None:
    claim(RedisQueue("z", client, clock=past), 1)
    client.hset("redis_queue:registry", "delay:a", b'{"max_deliveries": 1, "shards": 0}')

    with pytest.raises(ValueError, match="shards=0"):
        put_back_all(app)
    assert RedisQueue("z", client).stats().ready == 1


def test_concurrent_sweeps_duplicate_nothing(app: Celery, client: redis.Redis, past: ManualClock) -> None:
    work = RedisQueue("work", client, clock=past)
    entries = DelayQueue("entries", client, clock=past, shards=2)
    for _ in range(4):
        claim(work, 500)
        claim(entries, 500)
    start = threading.Barrier(4)

    def put_back(_: int) -> Any:
        start.wait(10)
        return put_back_all(app)

    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(put_back, range(4)))
    for name in ("queue:work", "delay:entries"):
        assert sum(part[name]["returned"] for part in done) == 2000
    assert (work.stats().ready, work.stats().in_flight) == (2000, 0)
    assert (entries.stats().waiting, entries.stats().in_flight) == (2000, 0)
    got: list[Any] = []
    while messages := RedisQueue("work", client).get_many(500):
        got += messages
    assert len({message.id for message in got}) == 2000
    assert {message.deliveries for message in got} == {2}


def test_destroyed_queue_is_no_longer_registered(app: Celery, client: redis.Redis) -> None:
    queue = RedisQueue("gone", client)
    queue.put("x")
    assert list(put_back_all(app)) == ["queue:gone"]
    queue.destroy()

    assert put_back_all(app) == {}


def test_every_queue_of_a_large_registry_is_swept(app: Celery, client: redis.Redis) -> None:
    registry = Registry(Scripts(client), "redis_queue")
    for number in range(300):
        registry.add("queue", f"work-{number}", RedisQueue("work", client).settings)

    assert len(put_back_all(app)) == 300


def test_unavailable_store_is_a_clear_error() -> None:
    with RedisServer(tcp=True) as server:
        app = Celery("tests", broker="memory://", set_as_current=False)
        app.conf.redis_queue_url = server.url
        Store.of(app).queue("work").put("x")
        server.kill()
        with pytest.raises(StoreUnavailableError, match="Redis"):
            put_back_all(app)
