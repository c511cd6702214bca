"""Lease counters: read from the broker; a failed write never disturbs a worker."""

from __future__ import annotations

import time

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from redis_queue.celery.consume import counters as counters_module
from redis_queue.celery.consume.counters import Counters, LeaseCounters, read
from redis_queue.store.keys import BrokerKeys
from redis_queue.store.redis_errors import RedisErrors
from tests.support.ports import HOST
from tests.support.servers import RedisServer


def app_on(server: RedisServer, **options: str) -> Celery:
    url = f"redis+socket://{server.socket}"
    return Celery("tests", broker=url, set_as_current=False, broker_transport_options=options)


def test_missing_counters_are_zero_and_reading_writes_nothing(redis_server: RedisServer, client: redis.Redis) -> None:
    assert read(app_on(redis_server)) == LeaseCounters(0, 0, 0, 0)
    assert client.dbsize() == 0


def test_counters_are_read_under_the_prefix_of_the_broker(redis_server: RedisServer, client: redis.Redis) -> None:
    app = app_on(redis_server, global_keyprefix="shop-")
    with app.connection() as connection:
        counted = Counters.of(connection.default_channel)
    counted.add("lost")
    counted.add("restored", 3)
    counted.add("restored")
    assert read(app) == LeaseCounters(lost=1, restored=4)
    assert client.keys() == [BrokerKeys("shop-").counters] == [b"shop-redis_queue:counters"]
    assert read(app_on(redis_server)) == LeaseCounters()


def test_invalid_counters_are_zero(redis_server: RedisServer, client: redis.Redis) -> None:
    client.hset(BrokerKeys("").counters, mapping={"lost": "many", "dead": -1, "dropped": 2})
    assert read(app_on(redis_server)) == LeaseCounters(dropped=2)


@pytest.mark.parametrize("trouble", ["another type", "away"])
def test_counting_never_raises(redis_server: RedisServer, client: redis.Redis, trouble: str) -> None:
    client.set(BrokerKeys("").counters, "not a hash")
    away = redis.Redis(host=HOST, port=1)
    Counters(away if trouble == "away" else client, "").add("lost")
    assert client.get(BrokerKeys("").counters) == b"not a hash"


def test_broker_other_than_redis_has_no_counters() -> None:
    assert read(Celery("tests", broker="memory://", set_as_current=False)) is None


def test_unavailable_broker_is_an_error() -> None:
    app = Celery("tests", broker=f"redis://{HOST}:1/0", set_as_current=False)
    with pytest.raises((OperationalError, *RedisErrors)):
        read(app)


def test_hanging_broker_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in counters_module.PATIENCE:
        monkeypatch.setitem(counters_module.PATIENCE, name, 0.2)
    with RedisServer() as server:
        app = app_on(server)
        server.pause()
        began = time.monotonic()
        with pytest.raises((OperationalError, *RedisErrors)):
            read(app)
        assert time.monotonic() - began < 8
